// Takes memory of the kernel that is charged to nobody, says `taken` when it has taken as many MiB as it is told, and keeps what it has of
// them: `lists` of names for descriptors of a directory; the same `queued` in sockets, and without the names that they are of; the same in
// connections that are `unaccepted`; the same in `threads` that have descriptors of their own; the same of a directory that is `removed`;
// or `locks` on files. One that `gives` lists meets one that `takes` them at a relay: from then on they hand all that they have to each
// other, again and again.
//
// uncharged KIND MIB DIRECTORY [RELAY]
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

enum { NAMES = 4000, NAME = 200, OF_NAME = 512, OF_LOCK = 192, LOCKS = 1500, QUEUED = 50, OF_THREAD = 20, PASSED = 4096 };

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

// A connection that waits to be accepted. The name is gone with its socket.
static int connect_to_own(int number) {
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    int length = offsetof(struct sockaddr_un, sun_path) + 1 + sprintf(name.sun_path + 1, "waits-%d", number);
    int listening = socket(AF_UNIX, SOCK_STREAM, 0), client = socket(AF_UNIX, SOCK_STREAM, 0);
    need(!bind(listening, (void *)&name, length) && !listen(listening, 1), 12);
    need(!connect(client, (void *)&name, length), 13);
    return client;
}

static int send_one(int socket, char byte, int fd, int flags) {
    char control[CMSG_SPACE(sizeof fd)] = {0};
    struct iovec data = {&byte, 1};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(head), &fd, sizeof fd);
    return sendmsg(socket, &message, flags) == 1 && !close(fd);
}

static int receive_one(int socket, int flags) {
    int fd = -1;
    char byte, control[CMSG_SPACE(sizeof fd)];
    struct iovec data = {&byte, 1};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    if (recvmsg(socket, &message, flags) == 1 && CMSG_FIRSTHDR(&message))
        memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    return fd;
}

static void hand_over(int *sender, int is_accepted, int number, int fd) {
    if (number % QUEUED == 0 && !is_accepted) {
        need(number == 0 || !close(*sender), 6);
        *sender = connect_to_own(number);
    } else if (number % QUEUED == 0) {
        int pair[2];
        need(!socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 6);
        *sender = pair[0];
    }
    need(send_one(*sender, 0, fd, 0), 7);
}

static int meet(const char *door, int gives) {
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    snprintf(name.sun_path, sizeof name.sun_path, "%s", door);
    int relay = socket(AF_UNIX, SOCK_STREAM, 0), pair[2];
    char end;
    need(!connect(relay, (void *)&name, sizeof name), 17);
    if (gives) {
        need(!socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 18);
        need(send_one(relay, 'g', pair[1], 0) && read(relay, &end, 1) == 0, 19);
    } else {
        need(write(relay, "t", 1) == 1 && puts("waits") > 0 && !fflush(stdout), 20);
        pair[0] = receive_one(relay, 0);
        need(pair[0] >= 0, 21);
    }
    need(!close(relay), 22);
    return pair[0];
}

static int passed[PASSED], many;

static void pass_on(int other) {
    for (int fd; many < PASSED && (fd = receive_one(other, MSG_DONTWAIT)) >= 0;)
        passed[many++] = fd;
    while (many > 0 && send_one(other, 'x', passed[many - 1], MSG_DONTWAIT))
        many--;
    usleep(100);
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

static void remove_all(void) {
    DIR *names = opendir(dir);
    need(names != NULL, 14);
    for (struct dirent *entry; (entry = readdir(names));)
        if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, ".."))
            need(!unlinkat(dirfd(names), entry->d_name, 0), 15);
    need(!closedir(names) && !rmdir(dir), 16);
}

int main(int count, char **words) {
    if (count != 4 && count != 5)
        return 2;
    const char *kind = words[1];
    long bytes = atol(words[2]) << 20;
    dir = words[3];
    struct rlimit files;
    need(!getrlimit(RLIMIT_NOFILE, &files), 2);
    files.rlim_cur = files.rlim_max;
    need(!setrlimit(RLIMIT_NOFILE, &files), 2);
    if (!strcmp(kind, "takes")) {
        int other = meet(words[4], 0);
        passed[many++] = receive_one(other, 0);
        need(passed[0] >= 0, 24);
        puts("taken");
        fflush(stdout);
        for (;;)
            pass_on(other);
    }
    if (!strcmp(kind, "gives")) {
        int other = meet(words[4], 1);
        all(kind, make);
        for (int number = 0; number < bytes / (NAMES * OF_NAME); number++) {
            need(many < PASSED, 23);
            passed[many++] = list(number);
            pass_on(other);
        }
        puts("taken");
        fflush(stdout);
        for (;;)
            pass_on(other);
    }
    if (!strcmp(kind, "locks")) {
        for (int number = 0; number < bytes / (LOCKS * OF_LOCK); number++)
            lock(number);
    } else {
        all(kind, make);
        long wanted = bytes / (NAMES * OF_NAME);
        int sender = -1, is_queued = !strcmp(kind, "queued"), is_unaccepted = !strcmp(kind, "unaccepted");
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
                if (is_queued || is_unaccepted)
                    hand_over(&sender, is_queued, number, listed);
            }
        }
        if (is_queued)
            all(kind, unlink);
        if (!strcmp(kind, "removed"))
            remove_all();
    }
    puts("taken");
    fflush(stdout);
    for (;;)
        pause();
}
