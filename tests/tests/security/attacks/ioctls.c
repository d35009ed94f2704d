// Asks a file system for what only its owner may: to discard, resize, shut down, pin. With pointers to nowhere, so that
// nothing happens where nothing stops it.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

int main(int count, char **arguments) {
    if (count != 2)
        return 2;
    int fd = open(arguments[1], O_RDONLY);
    if (fd < 0)
        return 3;
    const struct {
        const char *name;
        unsigned long request;
    } all[] = {
        {"trim", FITRIM},
        {"shut down", _IOR('X', 125, unsigned)},
        {"label", FS_IOC_SETFSLABEL},
        {"group of blocks", _IOW('f', 8, unsigned)},
    };
    for (unsigned at = 0; at < sizeof all / sizeof *all; at++)
        printf("%s %s\n", all[at].name, ioctl(fd, all[at].request, 1) ? strerrorname_np(errno) : "done");
    unsigned long long blocks = 0; // read before the right is asked for; to nothing, it cannot be done
    printf("resize %s\n", ioctl(fd, _IOW('f', 16, unsigned long long), &blocks) ? strerrorname_np(errno) : "done");
    int flags = FS_IMMUTABLE_FL, none = 0;
    printf("pin %s\n", ioctl(fd, FS_IOC_SETFLAGS, &flags) ? strerrorname_np(errno) : "done");
    ioctl(fd, FS_IOC_SETFLAGS, &none);
}
