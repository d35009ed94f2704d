// Reaches for what somebody else listens at.
//
//     contact abstract NAME | unix PATH | tcp PORT
//     contact listen NAME      an abstract socket of this name; says `listening` and waits for its end
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static socklen_t named(struct sockaddr_un *address, const char *name, int abstract) {
    memset(address, 0, sizeof *address);
    address->sun_family = AF_UNIX;
    snprintf(address->sun_path + abstract, sizeof address->sun_path - abstract, "%s", name);
    return offsetof(struct sockaddr_un, sun_path) + abstract + strlen(name);
}

int main(int count, char **words) {
    if (count != 3)
        return 2;
    struct sockaddr_un name;
    socklen_t length = named(&name, words[2], strcmp(words[1], "unix") != 0);
    int unix_socket = socket(AF_UNIX, SOCK_STREAM, 0);
    long done;
    if (!strcmp(words[1], "listen")) {
        if (bind(unix_socket, (void *)&name, length) || listen(unix_socket, 8))
            return 3;
        puts("listening");
        fflush(stdout);
        for (;;)
            pause();
    }
    if (!strcmp(words[1], "tcp")) {
        struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(words[2]))};
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        done = connect(socket(AF_INET, SOCK_STREAM, 0), (void *)&address, sizeof address);
    } else
        done = connect(unix_socket, (void *)&name, length);
    printf("%s %s\n", words[1], done ? strerrorname_np(errno) : "done");
}
