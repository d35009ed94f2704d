/* A neighbour that takes all it can get of one thing, again and again, until it is killed. Says that it has begun. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static void begun(void)
{
	puts("begun");
	fflush(stdout);
}

static void forks(void)
{
	begun();
	for (;;) {
		fork();
	}
}

/* The one that asks for too much is ended, and its parent starts the next. */
static void memory(void)
{
	begun();
	for (;;) {
		if (fork() == 0)
			for (;;) {
				char *more = malloc(16 << 20);
				if (more)
					memset(more, 1, 16 << 20);
			}
		wait(NULL);
	}
}

static void disk(void)
{
	static char block[1 << 20];
	int fd = open("/tmp/filler", O_CREAT | O_WRONLY, 0600);
	begun();
	for (;;) {
		for (int i = 0; i < 512 && write(fd, block, sizeof block) > 0; i++)
			;
		if (ftruncate(fd, 0) || lseek(fd, 0, SEEK_SET))
			exit(1);
	}
}

static void inodes(void)
{
	begun();
	for (;;) {
		for (int i = 0; i < 20000; i++) {
			char name[64];
			snprintf(name, sizeof name, "/tmp/inode-%d", i);
			close(open(name, O_CREAT | O_WRONLY, 0600));
		}
		for (int i = 0; i < 20000; i++) {
			char name[64];
			snprintf(name, sizeof name, "/tmp/inode-%d", i);
			unlink(name);
		}
	}
}

static void output(void)
{
	static char text[1 << 16];
	memset(text, 'x', sizeof text);
	begun();
	while (write(1, text, sizeof text) > 0)
		;
}

static void watches(void)
{
	begun();
	for (;;) {
		int instance = inotify_init1(0);
		if (instance < 0) {
			for (int fd = 3; fd < 4096; fd++)
				close(fd);
			continue;
		}
		for (int i = 0; i < 2000; i++) {
			char name[64];
			snprintf(name, sizeof name, "/tmp/watched-%d", i);
			mkdir(name, 0700);
			inotify_add_watch(instance, name, IN_ALL_EVENTS);
		}
	}
}

static void descriptors(void)
{
	static char page[4096];
	begun();
	for (;;) {
		int ends[2];
		if (pipe2(ends, O_NONBLOCK)) {
			for (int fd = 3; fd < 1 << 20; fd++)
				if (close(fd))
					break;
			continue;
		}
		while (write(ends[1], page, sizeof page) > 0)
			;
	}
}

static void terminals(void)
{
	begun();
	for (;;)
		if (posix_openpt(O_RDWR | O_NOCTTY) < 0)
			for (int fd = 3; fd < 1 << 20; fd++)
				if (close(fd))
					break;
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*take)(void);
	} all[] = { { "forks", forks },	    { "memory", memory },   { "disk", disk },		      { "inodes", inodes },
		    { "output", output },   { "watches", watches }, { "descriptors", descriptors }, { "terminals", terminals } };
	signal(SIGPIPE, SIG_DFL);
	for (size_t i = 0; argc == 2 && i < sizeof all / sizeof *all; i++)
		if (!strcmp(argv[1], all[i].name))
			all[i].take();
	return 2;
}
