/* A room: the least that an isolated sandbox with files of its own needs, and an init in it that runs /bin/true.
 *
 * Both paths are relative to the working directory, which must be open to all (0755): the room's root is nobody outside,
 * and could not come here through the closed home of another. */
#ifndef ROOM_H
#define ROOM_H

#include <sys/types.h>

struct room {
	const char *lower; /* holds /bin/true, /proc, /tmp and /dev */
	const char *dir;   /* of this room alone: its writable layer lies there */
	pid_t init;
	int asks; /* a byte runs /bin/true; a byte comes back when it has ended */
};

/* Once for a program: a mount namespace of its own with little in it. Each room begins with a copy of it, so a host with
 * many mounts would make the floor higher than it has to be. */
void room_prepare(void);
/* Makes the room. Its init runs /bin/true once and answers, without being asked: the first command. */
void room_open(struct room *room);
/* Waits for an answer. */
void room_await(struct room *room);
/* Asks for one more command, and waits for the answer. */
void room_run(struct room *room);
/* Ends its processes and removes its directory. */
void room_close(struct room *room);

#endif
