// Says what a process is: whose, with which rights, with which descriptors.
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

int main(void) {
    uid_t real, effective, saved;
    getresuid(&real, &effective, &saved);
    printf("user %u\n", effective);
    char line[256];
    FILE *status = fopen("/proc/self/status", "r");
    while (status && fgets(line, sizeof line, status))
        if (!strncmp(line, "Cap", 3) || !strncmp(line, "NoNewPrivs", 10) || !strncmp(line, "Seccomp:", 8))
            printf("%.*s %s", (int)strcspn(line, ":"), line, line + strcspn(line, "\t") + 1);
    if (status)
        fclose(status);
    for (int fd = 0; fd < 1024; fd++) {
        struct stat is;
        if (fstat(fd, &is))
            continue;
        const char *kind = S_ISFIFO(is.st_mode) ? "pipe" : S_ISCHR(is.st_mode) ? "device" : S_ISDIR(is.st_mode) ? "directory"
            : S_ISSOCK(is.st_mode) ? "socket" : S_ISREG(is.st_mode) ? "file" : "other";
        printf("descriptor %d %s\n", fd, kind);
    }
}
