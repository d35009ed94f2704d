// Becomes somebody whom the sandbox does not have, and gives a file to them. The file is the argument; each in a child.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <stdio.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *file;
static const unsigned FOREIGN = 0x70010000; // of another live range

static long user(void) { return setuid(FOREIGN); }
static long group(void) { return setgid(FOREIGN); }
static long groups(void) {
    gid_t all[] = {FOREIGN};
    return setgroups(1, all);
}
static long owner(void) { return chown(file, FOREIGN, -1); }
static long owning_group(void) { return chown(file, -1, FOREIGN); }
static long for_files(void) {
    setfsuid(FOREIGN);
    errno = EINVAL;
    return setfsuid(-1) == (int)FOREIGN ? 0 : -1;
}

int main(int count, char **words) {
    if (count != 2)
        return 2;
    file = words[1];
    close(open(file, O_WRONLY | O_CREAT, 0666));
    const struct {
        const char *name;
        long (*act)(void);
    } all[] = {{"user", user}, {"group", group}, {"groups", groups}, {"owner", owner}, {"owning group", owning_group}, {"for files", for_files}};
    for (unsigned at = 0; at < sizeof all / sizeof *all; at++) {
        fflush(stdout);
        pid_t child = fork();
        if (!child) {
            printf("%s %s\n", all[at].name, all[at].act() ? strerrorname_np(errno) : "done");
            fflush(stdout);
            _exit(0);
        }
        waitpid(child, NULL, 0);
    }
    unlink(file);
}
