// Takes memory of the kernel that is charged to nobody, says `taken` when it has as many MiB as it is told, and keeps them: `lists` of
// names for descriptors of a directory, the same `queued` in sockets and without the names that they are of, the same in `threads` that
// have descriptors of their own, or `locks` on files.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { NAMES = 4000, NAME = 200, OF_NAME = 512, OF_LOCK = 192, LOCKS = 600, QUEUED = 50, OF_THREAD = 20 };

static const char *dir;
static long lists;

static void need(int holds, int status) {
    if (!holds) {
        perror("refused");
        exit(status);
    }
}

static void name(char *path, const char *kind, int number) {
    snprintf(path, 512, "%s/%s-%0*d", dir, kind, NAME, number);
}

// Each list is one of its own: the directory has changed since the last.
static int list(int number) {
    char path[512], names[512];
    name(path, "change", number);
    int made = open(path, O_CREAT | O_WRONLY, 0600);
    need(made >= 0 && !close(made) && !unlink(path), 3);
    int listed = open(dir, O_RDONLY);
    need(listed >= 0 && syscall(SYS_getdents64, listed, names, sizeof names) > 0, 4);
    return listed;
}

static void all(const char *kind, int (*act)(const char *)) {
    char path[512];
    for (int number = 0; number < NAMES; number++) {
        name(path, kind, number);
        need(act(path) == 0, 5);
    }
}

static int make(const char *path) {
    int made = open(path, O_CREAT | O_WRONLY, 0600);
    return made < 0 ? -1 : close(made);
}

static void hand_over(int *pair, int number, int fd) {
    if (number % QUEUED == 0)
        need(!socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 6);
    char byte = 0, control[CMSG_SPACE(sizeof fd)] = {0};
    struct iovec data = {&byte, 1};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(head), &fd, sizeof fd);
    need(sendmsg(pair[0], &message, 0) == 1 && !close(fd), 7);
}

static void *in_a_table_of_its_own(void *first) {
    need(!unshare(CLONE_FILES), 8);
    for (int number = 0; number < OF_THREAD; number++)
        list((int)(long)first + number);
    __atomic_add_fetch(&lists, OF_THREAD, __ATOMIC_SEQ_CST);
    for (;;)
        pause();
    return NULL;
}

static void lock(int number) {
    char path[512];
    name(path, "locked", number);
    int file = open(path, O_CREAT | O_RDWR, 0600);
    need(file >= 0, 9);
    for (int place = LOCKS; place > 0; place--) {
        struct flock one = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 2 * place, .l_len = 1};
        need(!fcntl(file, F_SETLK, &one), 10);
    }
}

int main(int count, char **words) {
    if (count != 4)
        return 2;
    const char *kind = words[1];
    long bytes = atol(words[2]) << 20;
    dir = words[3];
    struct rlimit files;
    need(!getrlimit(RLIMIT_NOFILE, &files), 2);
    files.rlim_cur = files.rlim_max;
    need(!setrlimit(RLIMIT_NOFILE, &files), 2);
    if (!strcmp(kind, "locks")) {
        for (int number = 0; number < bytes / (LOCKS * OF_LOCK); number++)
            lock(number);
    } else {
        all(kind, make);
        long wanted = bytes / (NAMES * OF_NAME);
        int pair[2], is_queued = !strcmp(kind, "queued");
        if (!strcmp(kind, "threads")) {
            for (long number = 0; number < wanted; number += OF_THREAD) {
                pthread_t thread;
                need(!pthread_create(&thread, NULL, in_a_table_of_its_own, (void *)number), 11);
                while (__atomic_load_n(&lists, __ATOMIC_SEQ_CST) < number)
                    usleep(1000);
            }
            while (__atomic_load_n(&lists, __ATOMIC_SEQ_CST) < wanted)
                usleep(1000);
        } else {
            for (int number = 0; number < wanted; number++) {
                int listed = list(number);
                if (is_queued)
                    hand_over(pair, number, listed);
            }
        }
        if (is_queued)
            all(kind, unlink);
    }
    puts("taken");
    fflush(stdout);
    for (;;)
        pause();
}
