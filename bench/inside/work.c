/* What a sandbox does while its neighbour misbehaves: some arithmetic, some memory, some processes, some small files. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void must(int holds, const char *what)
{
	if (!holds) {
		perror(what);
		exit(1);
	}
}

int main(void)
{
	volatile uint64_t sum = 0;
	for (uint64_t i = 0; i < 20000000; i++)
		sum = sum * 6364136223846793005ULL + i;
	size_t size = 8 << 20;
	char *memory = malloc(size);
	must(memory != NULL, "malloc");
	memset(memory, (int)sum, size);
	for (int i = 0; i < 100; i++) {
		char name[64];
		snprintf(name, sizeof name, "/tmp/work-%d", i);
		int fd = open(name, O_CREAT | O_WRONLY | O_TRUNC, 0644);
		must(fd >= 0 && write(fd, memory, 1024) == 1024, name);
		close(fd);
	}
	for (int i = 0; i < 5; i++) {
		pid_t pid = fork();
		must(pid >= 0, "fork");
		if (pid == 0)
			_exit(0);
		must(waitpid(pid, NULL, 0) == pid, "wait");
	}
	return 0;
}
