// Makes or looks for System V and POSIX objects of a given key: shared memory, a queue, semaphores, a message queue.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <mqueue.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <unistd.h>

static void say(const char *what, long done) { printf("%s %s\n", what, done >= 0 ? "done" : strerrorname_np(errno)); }

int main(int count, char **arguments) {
    if (count != 3)
        return 2;
    key_t key = atoi(arguments[2]);
    char name[32];
    snprintf(name, sizeof name, "/cabana-%d", key);
    int make = !strcmp(arguments[1], "make"), remove = !strcmp(arguments[1], "remove");
    int flags = make ? IPC_CREAT | 0666 : 0;
    int shm = shmget(key, make ? 4096 : 0, flags), msg = msgget(key, flags), sem = semget(key, make ? 1 : 0, flags);
    if (remove) {
        shmctl(shm, IPC_RMID, NULL);
        msgctl(msg, IPC_RMID, NULL);
        semctl(sem, 0, IPC_RMID);
        mq_unlink(name);
        shm_unlink(name);
        return 0;
    }
    say("shared memory", shm);
    say("queue", msg);
    say("semaphores", sem);
    say("message queue", mq_open(name, O_RDWR | (make ? O_CREAT : 0), 0666, NULL));
    say("memory file", shm_open(name, O_RDWR | (make ? O_CREAT : 0), 0666));
}
