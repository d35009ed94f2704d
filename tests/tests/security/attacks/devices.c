// Makes device nodes in the directory that it is told, opens those that it got, and says what came of it.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

int main(int count, char **words) {
    if (count != 2)
        return 2;
    const struct {
        const char *name;
        int kind, major, minor;
    } all[] = {
        {"loop", S_IFBLK, 7, 0},     {"disk", S_IFBLK, 8, 0},    {"virtual disk", S_IFBLK, 254, 0},
        {"memory", S_IFCHR, 1, 1},   {"ports", S_IFCHR, 1, 4},   {"log", S_IFCHR, 1, 11},
        {"console", S_IFCHR, 5, 1},  {"fuse", S_IFCHR, 10, 229}, {"tunnel", S_IFCHR, 10, 200},
        {"machines", S_IFCHR, 10, 232}, {"nothing", S_IFCHR, 1, 3},
    };
    for (unsigned at = 0; at < sizeof all / sizeof *all; at++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/node%u", words[1], at);
        long done = mknod(path, all[at].kind | 0666, makedev(all[at].major, all[at].minor));
        printf("making %s %s\n", all[at].name, done ? strerrorname_np(errno) : "done");
        unlink(path);
    }
}
