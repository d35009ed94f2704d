/* One command: fork, exec, wait. With /bin/true it is the floor of all floors; with `bwrap ...` or `docker exec ...` it
 * measures a peer by the same clock. */
#include "rhythm.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

static int64_t once(void *with)
{
	char **argv = with;
	int64_t start = now_ns();
	pid_t pid = fork();
	if (pid < 0)
		fail("fork");
	if (pid == 0) {
		execvp(argv[0], argv);
		_exit(127);
	}
	int status;
	if (waitpid(pid, &status, 0) < 0)
		fail("waitpid");
	int64_t took = now_ns() - start;
	if (status != 0) {
		fprintf(stderr, "%s ended with wait status %d\n", argv[0], status);
		exit(1);
	}
	return took;
}

int main(int argc, char **argv)
{
	struct rhythm rhythm = rhythm_of(argc, argv, 4, "COMMAND...");
	beat(rhythm, once, argv + 3);
	return 0;
}
