// Stays in a directory, says so, waits for a byte, and then walks up from where it stands to a file that it was told.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int main(int count, char **arguments) {
    if (count != 4 || chdir(arguments[1]))
        return 2;
    int here = open(".", O_RDONLY | O_DIRECTORY);
    puts("here");
    fflush(stdout);
    while (access(arguments[3], F_OK))
        usleep(10000);
    char up[4096] = "";
    for (int level = 0; level < 64; level++) {
        char path[8192];
        snprintf(path, sizeof path, "%s%s", up, arguments[2]);
        if (openat(here, path, O_RDONLY) >= 0 || open(path, O_RDONLY) >= 0) {
            printf("found %d levels up\n", level);
            return 0;
        }
        strcat(up, "../");
    }
    puts("not found");
}
