// Locks what all processes of the machine have in common, says `locked`, and keeps the locks: of `eventfd`s, or of a `namespace` that the host
// and all sandboxes are in. It takes them for a `process`, or `whole` (flock), or so that the descriptor is in a queue (`queued`).
//
// common_locks eventfd|namespace process|whole|queued COUNT
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

static void need(int holds, int status) {
    if (!holds) {
        perror("refused");
        exit(status);
    }
}

static int open_common(const char *what) {
    int fd = what[0] == 'e' ? eventfd(0, 0) : open("/proc/self/ns/time", O_RDONLY);
    need(fd >= 0, 3);
    return fd;
}

static void queue(int fd) {
    int pair[2];
    char control[CMSG_SPACE(sizeof fd)] = {0}, byte = 0;
    struct iovec data = {&byte, 1};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(head), &fd, sizeof fd);
    need(!socketpair(AF_UNIX, SOCK_STREAM, 0, pair) && sendmsg(pair[0], &message, 0) == 1 && !close(fd), 4);
}

int main(int count, char **words) {
    if (count != 4)
        return 2;
    const char *what = words[1], *how = words[2];
    int fd = open_common(what), type = what[0] == 'e' ? F_WRLCK : F_RDLCK;
    struct rlimit files;
    need(!getrlimit(RLIMIT_NOFILE, &files), 2);
    files.rlim_cur = files.rlim_max;
    need(!setrlimit(RLIMIT_NOFILE, &files), 2);
    for (int number = atoi(words[3]); number > 0; number--) {
        struct flock one = {.l_type = type, .l_whence = SEEK_SET, .l_start = 2 * number, .l_len = 1};
        int is_process = !strcmp(how, "process"), each = is_process ? fd : open_common(what);
        need(is_process ? !fcntl(fd, F_SETLK, &one) : !flock(each, LOCK_SH), 5);
        if (!strcmp(how, "queued"))
            queue(each);
    }
    puts("locked");
    fflush(stdout);
    for (;;)
        pause();
}
