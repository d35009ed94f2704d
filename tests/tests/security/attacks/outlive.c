// Leaves its parent, its session and its group, from each of its threads, and stays under the name that it is told; once as a
// process whose first thread has ended. Says `begun` when all of them are there, and sleeps itself.
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static void stays(void) {
    for (int number = 1; number < 32; number++)
        signal(number, SIG_IGN);
    syscall(SYS_close_range, 0, ~0U, 0); // nobody waits for what it has open
    for (;;)
        sleep(1000);
}

static void *as_thread(void *unused) {
    (void)unused;
    stays();
    return NULL;
}

static const char *name;

static void leaves(int way) {
    if (fork())
        return;
    if (way != 1)
        setsid();
    if (way != 2 && fork() != 0)
        _exit(0);
    execl("/proc/self/exe", name, way == 3 ? "leaderless" : "again", name, NULL);
    _exit(4);
}

static void *leaves_from_a_thread(void *unused) {
    (void)unused;
    leaves(0);
    leaves(3);
    return NULL;
}

int main(int count, char **words) {
    pthread_t thread;
    if (count == 3 && !strcmp(words[1], "again"))
        stays();
    if (count == 3 && !strcmp(words[1], "leaderless")) {
        pthread_create(&thread, NULL, as_thread, NULL);
        pthread_exit(NULL);
    }
    if (count != 2)
        return 2;
    name = words[1];
    for (int way = 0; way < 4; way++)
        leaves(way);
    pthread_create(&thread, NULL, leaves_from_a_thread, NULL);
    pthread_join(thread, NULL);
    puts("begun");
    fflush(stdout);
    for (;;)
        sleep(1000);
}
