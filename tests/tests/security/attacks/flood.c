// Makes a call that process 1 decides, from many threads and without an end, until there is a file of the name that it is told. Says
// `begun` when each thread has had its first answer.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { THREADS = 96 };

static atomic_int begun;

static void *floods(void *unused) {
    (void)unused;
    for (long calls = 0;; calls++) {
        syscall(SYS_ptrace, PTRACE_SETOPTIONS, 1, 0, PTRACE_O_TRACEEXIT);
        if (calls == 0)
            begun++;
    }
    return NULL;
}

int main(int count, char **words) {
    if (count != 2)
        return 2;
    for (int number = 0; number < THREADS; number++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, floods, NULL))
            return 3;
    }
    while (begun < THREADS)
        usleep(1000);
    puts("begun");
    fflush(stdout);
    while (access(words[1], F_OK))
        usleep(1000);
    return 0;
}
