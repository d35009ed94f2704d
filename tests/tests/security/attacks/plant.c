// Prepares files for whoever starts the next command. DESCRIPTORS is how many of /proc/self/fd/3, 4, … each is made for.
//
//     plant link TEXT AT                             a link at AT, in the place of whatever is there
//     plant links DIRECTORY DESCRIPTORS TAIL         links to /proc/self/fd/NUMBER/TAIL
//     plant script INTERPRETER AT                    a script at AT, in the place of what is there
//     plant scripts DIRECTORY DESCRIPTORS TAIL       scripts whose interpreter is /proc/self/fd/NUMBER/TAIL
//     plant programs DIRECTORY DESCRIPTORS TAIL FROM programs with such an interpreter, of the one at FROM
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PLACE "/interpreter/" // how the name in FROM begins, which has room for another

static long report(const char *what, long done) {
    printf("%s %s\n", what, done >= 0 ? "done" : strerrorname_np(errno));
    return done;
}

static long file(const char *at, const char *bytes, long length) {
    char draft[4096];
    snprintf(draft, sizeof draft, "%s.new", at);
    int fd = open(draft, O_WRONLY | O_CREAT | O_TRUNC, 0755);
    if (fd < 0 || write(fd, bytes, length) != length || fchmod(fd, 0755) || close(fd))
        return -1;
    return rename(draft, at);
}

static long script(const char *at, const char *interpreter) {
    char text[4096];
    return file(at, text, snprintf(text, sizeof text, "#!%s\n", interpreter));
}

static long program(const char *at, const char *interpreter, const char *from) {
    static char bytes[1 << 20];
    int fd = open(from, O_RDONLY);
    long length = read(fd, bytes, sizeof bytes);
    close(fd);
    char *name = length > 0 ? memmem(bytes, length, PLACE, strlen(PLACE)) : NULL;
    if (!name || strlen(name) < strlen(interpreter))
        return -1;
    memset(name, 0, strlen(name));
    memcpy(name, interpreter, strlen(interpreter));
    return file(at, bytes, length);
}

static int gone(const char *path, const struct stat *is, int kind, struct FTW *where) {
    (void)is, (void)kind, (void)where;
    return remove(path) && errno != ENOENT;
}

static long place(const char *text, const char *at) {
    nftw(at, gone, 16, FTW_DEPTH | FTW_PHYS);
    return symlink(text, at);
}

int main(int count, char **words) {
    if (count == 4 && !strcmp(words[1], "link"))
        return report("link", place(words[2], words[3])), 0;
    if (count == 4 && !strcmp(words[1], "script"))
        return report("script", script(words[3], words[2])), 0;
    if (count < 5)
        return 2;
    mkdir(words[2], 0755);
    for (int number = 3; number < 3 + atoi(words[3]); number++) {
        char at[4096], target[4096];
        snprintf(at, sizeof at, "%s/%d", words[2], number);
        snprintf(target, sizeof target, "/proc/self/fd/%d/%s", number, words[4]);
        long done = !strcmp(words[1], "links") ? symlink(target, at)
            : !strcmp(words[1], "scripts")     ? script(at, target)
            : count == 6                       ? program(at, target, words[5])
                                               : -1;
        if (done)
            return perror(at), 3;
    }
    report(words[1], 0);
}
