// Opens and makes files, with and without set-uid bits in the mode, before it has built a wall of Landlock's around itself
// that allows nothing (`open`), or after (`closed`).
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/landlock.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static void say(const char *what, int file) {
    printf("%s %s\n", what, file < 0 ? strerrorname_np(errno) : "done");
    if (file >= 0)
        close(file);
}

int main(int count, char **arguments) {
    if (count != 2)
        return 2;
    if (!strcmp(arguments[1], "closed")) {
        struct landlock_ruleset_attr all = {.handled_access_fs = 0x1fff};
        int ruleset = syscall(SYS_landlock_create_ruleset, &all, sizeof all.handled_access_fs, 0);
        if (ruleset < 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || syscall(SYS_landlock_restrict_self, ruleset, 0))
            return 3;
    }
    say("plain open", open("/home/user/secret", O_RDONLY));
    say("plain new", open("/home/user/new", O_RDWR | O_CREAT | O_EXCL, 0600));
    say("open with bits", open("/home/user/secret", O_RDWR | O_CREAT, 04600));
    say("emptying with bits", open("/home/user/secret", O_RDWR | O_CREAT | O_TRUNC, 04600));
    say("new with bits", open("/home/user/set", O_RDWR | O_CREAT | O_EXCL, 04755));
}
