// Fills a file that has no name any more, and holds it where a look at the process does not see it: in a thread whose
// leader has ended, or in a thread with a table of files of its own.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *way;
static long mebibytes;

static void *hold(void *unused) {
    (void)unused;
    if (!strcmp(way, "table") && unshare(CLONE_FILES))
        _exit(3);
    sleep(1); // until the leader has ended
    int file = open("/home/user/nameless", O_RDWR | O_CREAT | O_EXCL, 0600);
    if (file < 0 || unlink("/home/user/nameless"))
        _exit(4);
    puts("begun");
    fflush(stdout);
    static char block[1 << 20];
    memset(block, 'x', sizeof block);
    for (long written = 0; written < mebibytes; written++)
        if (write(file, block, sizeof block) != sizeof block)
            _exit(5);
    for (;;) {
        for (volatile long spin = 0; spin < 1000000; spin++)
            ; // it moves, so it is looked at
        usleep(10000);
    }
}

int main(int count, char **arguments) {
    if (count < 3)
        return 2;
    way = arguments[1];
    mebibytes = atol(arguments[2]);
    pthread_t thread;
    if (pthread_create(&thread, NULL, hold, NULL))
        return 6;
    if (!strcmp(way, "leader"))
        pthread_exit(NULL);
    pthread_join(thread, NULL);
}
