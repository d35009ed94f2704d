// Looks for a file of the host from where it stands: from its working directory and from every descriptor that it was
// given, by walking up. Tries to make a file beside it, and to move itself into a control group on the way.
//
//     outside FILE CONTENT OPEN_DIRECTORY      and each path without its first slash
//     outside from DIRECTORY PROGRAM WORDS...  the control: with DIRECTORY open as 7, goes to /proc/self/fd/7 and starts PROGRAM
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define UP "../../../../../../../../../../../../../../../../"

static const char *came(long done) { return done >= 0 ? "done" : strerrorname_np(errno); }

static long holds(int from, const char *file, const char *content) {
    char path[8192], text[4096];
    snprintf(path, sizeof path, UP "%s", file);
    int fd = openat(from, path, O_RDONLY | O_NONBLOCK);
    long length = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (length < 0)
        return -1;
    text[length] = 0;
    errno = ENOENT; // something else of that name
    return strstr(text, content) ? 0 : -1;
}

static long makes(int from, const char *directory) {
    char path[8192];
    snprintf(path, sizeof path, UP "%s/made-%d", directory, getpid());
    return openat(from, path, O_WRONLY | O_CREAT | O_EXCL, 0666);
}

static long joins(int from) {
    char path[256] = "";
    long done = -1;
    for (int level = 0; level < 8 && done < 0; level++) {
        char group[512];
        snprintf(group, sizeof group, "%scgroup.procs", path);
        int fd = openat(from, group, O_WRONLY);
        done = fd < 0 ? -1 : write(fd, "0", 1);
        strcat(path, "../");
    }
    return done;
}

int main(int count, char **words) {
    if (count > 3 && !strcmp(words[1], "from")) {
        int fd = open(words[2], O_RDONLY | O_DIRECTORY);
        if (fd < 0 || dup3(fd, 7, O_CLOEXEC) != 7 || chdir("/proc/self/fd/7"))
            return 3;
        execv(words[3], words + 3);
        return 4;
    }
    if (count != 4)
        return 2;
    char where[4096];
    // The kernel's own answer: the library turns one that is not below the root into an error.
    if (syscall(SYS_getcwd, where, sizeof where) > 0 && where[0] != '/')
        puts("standing outside of the root done");
    printf("reading it from the working directory %s\n", came(holds(AT_FDCWD, words[1], words[2])));
    printf("writing beside it from the working directory %s\n", came(makes(AT_FDCWD, words[3])));
    printf("joining a group from the working directory %s\n", came(joins(AT_FDCWD)));
    for (int fd = 0; fd < 256; fd++) {
        if (!holds(fd, words[1], words[2]))
            printf("reading it from descriptor %d done\n", fd);
        if (makes(fd, words[3]) >= 0)
            printf("writing beside it from descriptor %d done\n", fd);
    }
}
