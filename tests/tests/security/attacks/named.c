// Gives names to Unix sockets in a directory: named DIR. Says of each way `done`, when who connects to that name is heard and both are
// told the very address that was asked for.
#define _GNU_SOURCE
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static int try(int kind, const char *path) {
    struct sockaddr_un name = {.sun_family = AF_UNIX}, told = {0};
    snprintf(name.sun_path, sizeof name.sun_path, "%s", path);
    socklen_t length = sizeof told;
    int one = socket(AF_UNIX, kind, 0), other = socket(AF_UNIX, kind, 0);
    if (bind(one, (void *)&name, sizeof name))
        return errno;
    if (kind == SOCK_STREAM && listen(one, 8))
        return errno;
    if (connect(other, (void *)&name, sizeof name) || getsockname(one, (void *)&told, &length))
        return errno;
    return strcmp(told.sun_path, path) ? ERANGE : 0;
}

static void report(const char *way, int came) {
    printf("%s %s\n", way, came ? strerrorname_np(came) : "done");
}

int main(int count, char **words) {
    char path[100];
    if (count != 2 || chdir(words[1]))
        return 2;
    snprintf(path, sizeof path, "%s/absolute-%d", words[1], getpid());
    report("absolute", try(SOCK_STREAM, path));
    snprintf(path, sizeof path, "%s/datagram-%d", words[1], getpid());
    report("datagram", try(SOCK_DGRAM, path));
    snprintf(path, sizeof path, "relative-%d", getpid());
    report("relative", try(SOCK_STREAM, path));
    snprintf(path, sizeof path, "./dotted-%d", getpid());
    report("dotted", try(SOCK_DGRAM, path));
}
