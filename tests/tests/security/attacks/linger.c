// Has the kernel close a connection that waits until all is sent, which never is: the collector of Unix sockets drops it, and a worker of the
// kernel closes what that drops, for the whole machine. Says then whether the worker still closes what others drop: `works` or `waits`.
//
// linger MILLISECONDS
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void need(int holds, int status) {
    if (!holds) {
        perror("refused");
        exit(status);
    }
}

// Into a socket that is in its own queue: nobody has it any more.
static void drop(int fd) {
    int pair[2];
    char control[CMSG_SPACE(2 * sizeof fd)] = {0}, byte = 0;
    struct iovec data = {&byte, 1};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    need(!socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 3);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(2 * sizeof fd);
    memcpy(CMSG_DATA(head), (int[]){fd, pair[1]}, 2 * sizeof fd);
    need(sendmsg(pair[0], &message, 0) == 1 && !close(fd) && !close(pair[0]) && !close(pair[1]), 4);
}

int main(int count, char **words) {
    if (count != 2)
        return 2;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int listening = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0), pipes[2];
    need(!bind(listening, (void *)&address, size) && !listen(listening, 1), 5);
    need(!getsockname(listening, (void *)&address, &size) && !connect(client, (void *)&address, size), 6);
    int other = accept(listening, NULL, NULL);
    struct linger linger = {1, 1000000};
    need(other >= 0 && !setsockopt(client, SOL_SOCKET, SO_LINGER, &linger, sizeof linger), 7);
    need(!fcntl(client, F_SETFL, O_NONBLOCK), 8);
    char bytes[65536] = {0};
    while (send(client, bytes, sizeof bytes, 0) > 0)
        ;
    drop(client);
    // Again and again: what is dropped soon after it can be closed before it.
    for (int tries = 0; tries < 20; tries++) {
        need(!pipe(pipes), 9);
        drop(pipes[1]);
        struct pollfd ends = {pipes[0], POLLIN, 0};
        if (poll(&ends, 1, atoi(words[1])) != 1)
            return puts("waits") < 0;
        close(pipes[0]);
    }
    puts("works");
}
