// Opens files of the kernel, and writes and reads nothing, or next to nothing.
//
//     settings write FILE...   for writing
//     settings read FILE...    for reading: `done` where a byte that is no zero can be had
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static long has_content(const char *name) {
    char text[256];
    int fd = open(name, O_RDONLY | O_NONBLOCK);
    long length = fd < 0 ? -1 : read(fd, text, sizeof text);
    if (fd >= 0)
        close(fd);
    if (length < 0)
        return -1;
    errno = ENODATA;
    return length > 0 ? 0 : -1;
}

static long opens(const char *name) {
    int fd = open(name, O_WRONLY | O_NONBLOCK);
    struct stat is;
    if (fd < 0)
        return -1;
    // The null device lies over what is masked: whoever writes there writes nowhere.
    long done = fstat(fd, &is) || S_ISCHR(is.st_mode) ? -1 : 0;
    errno = ENODEV;
    close(fd);
    return done;
}

int main(int count, char **words) {
    for (int at = 2; at < count; at++) {
        long done = !strcmp(words[1], "write") ? opens(words[at]) : has_content(words[at]);
        printf("%s %s\n", words[at], done ? strerrorname_np(errno) : "done");
    }
}
