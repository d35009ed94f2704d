/* The floor of a pause: ten processes in a group of their own, frozen and thawed by hand. */
#include "rhythm.h"
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define PROCESSES 10

struct group {
	int freeze, events;
};

static void await_state(struct group *group, const char *state)
{
	char text[256];
	for (;;) {
		ssize_t length = pread(group->events, text, sizeof text - 1, 0);
		if (length < 0)
			fail("cgroup.events");
		text[length] = 0;
		if (strstr(text, state))
			return;
		struct pollfd changed = { group->events, POLLPRI, 0 };
		poll(&changed, 1, 1000);
	}
}

static void set(struct group *group, const char *to, const char *state)
{
	if (pwrite(group->freeze, to, 1, 0) != 1)
		fail("cgroup.freeze");
	await_state(group, state);
}

static int64_t once(void *with)
{
	int64_t start = now_ns();
	set(with, "1", "frozen 1");
	set(with, "0", "frozen 0");
	return now_ns() - start;
}

static int open_in(const char *dir, const char *name, int flags)
{
	char path[4096];
	snprintf(path, sizeof path, "%s/%s", dir, name);
	int fd = open(path, flags);
	if (fd < 0)
		fail(path);
	return fd;
}

int main(int argc, char **argv)
{
	struct rhythm rhythm = rhythm_of(argc, argv, 4, "CGROUP");
	const char *dir = argv[3];
	if (mkdir(dir, 0755))
		fail(dir);
	int procs = open_in(dir, "cgroup.procs", O_WRONLY);
	pid_t pids[PROCESSES];
	for (int i = 0; i < PROCESSES; i++) {
		pids[i] = fork();
		if (pids[i] == 0) {
			if (write(procs, "0", 1) != 1)
				fail("cgroup.procs");
			execl("/bin/sleep", "sleep", "infinity", NULL);
			fail("/bin/sleep");
		}
	}
	struct group group = { open_in(dir, "cgroup.freeze", O_WRONLY), open_in(dir, "cgroup.events", O_RDONLY) };
	await_state(&group, "populated 1");
	beat(rhythm, once, &group);
	for (int i = 0; i < PROCESSES; i++) {
		kill(pids[i], SIGKILL);
		waitpid(pids[i], NULL, 0);
	}
	await_state(&group, "populated 0");
	return rmdir(dir);
}
