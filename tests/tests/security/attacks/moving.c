// Writes files where a walk does not come: beside the end of a long chain of directories, whose beginning is moved to and
// fro all the time, so that a walk that is far down does not find its way back. Says when all is written, and moves on.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TREES = 8, LEVELS = 400 };

static int below(int dir, const char *name) {
    mkdirat(dir, name, 0755);
    int found = openat(dir, name, O_RDONLY | O_DIRECTORY);
    if (found < 0)
        _exit(3);
    return found;
}

int main(int count, char **arguments) {
    if (count != 2)
        return 2;
    static char block[1 << 20];
    memset(block, 'x', sizeof block);
    int trees[TREES], moved[TREES], top = below(AT_FDCWD, "/home/user/moving");
    for (int tree = 0; tree < TREES; tree++) {
        char name[16];
        snprintf(name, sizeof name, "%d", tree);
        trees[tree] = below(top, name);
        close(below(trees[tree], "there"));
        int here = below(trees[tree], "here");
        moved[tree] = below(here, "moved");
        int end = dup(moved[tree]);
        for (int level = 0; level < LEVELS; level++) {
            int next = below(end, "chain");
            close(end);
            end = next;
        }
        close(end);
        close(here);
    }
    for (int mover = 0; mover < 2; mover++)
        if (!fork())
            for (;;)
                for (int tree = 0; tree < TREES; tree++)
                    if (renameat(trees[tree], "here/moved", trees[tree], "there/moved"))
                        renameat(trees[tree], "there/moved", trees[tree], "here/moved");
    puts("moving");
    fflush(stdout);
    for (int mebibyte = 0; mebibyte < atoi(arguments[1]); mebibyte++) {
        char name[32];
        snprintf(name, sizeof name, "aside-%d", mebibyte);
        int aside = below(moved[mebibyte % TREES], name), file = openat(aside, "file", O_CREAT | O_WRONLY, 0644);
        if (write(file, block, sizeof block) != sizeof block)
            return 4;
        close(file);
        close(aside);
    }
    puts("written");
    fflush(stdout);
    for (;;)
        pause();
}
