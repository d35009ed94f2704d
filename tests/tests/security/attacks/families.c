// Opens a socket of each family and kind that is told as FAMILY:TYPE:PROTOCOL.
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int main(int count, char **words) {
    for (int at = 1; at < count; at++) {
        int family, type, protocol;
        if (sscanf(words[at], "%d:%d:%d", &family, &type, &protocol) != 3)
            return 2;
        int fd = socket(family, type, protocol);
        printf("%s %s\n", words[at], fd < 0 ? strerrorname_np(errno) : "done");
        if (fd >= 0)
            close(fd);
    }
}
