// Tries every way that the kernel has to make a file privileged: set-uid and set-gid bits, and capabilities. Each on a file of
// its own in the given directory, whose files belong to the given user. Prints each way with what came of it.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#ifndef SYS_fchmodat2
#define SYS_fchmodat2 452
#endif
#ifndef SYS_setxattrat
#define SYS_setxattrat 463
#endif

static const char *dir;
static char path[4096], other[4096];
static unsigned owner;

static void told(const char *way, long done) {
    printf("%s %s\n", way, done >= 0 ? "done" : strerrorname_np(errno));
    fflush(stdout);
}

// Only the owner's ids are there in a view: root makes files as the owner, and attacks them as itself.
static void as(unsigned id) {
    setfsgid(id);
    setfsuid(id);
}

// A name of its own for each way, and with `make` a plain file there.
static const char *at(const char *name, int make) {
    snprintf(path, sizeof path, "%s/%s", dir, name);
    if (make) {
        as(owner);
        int fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0755);
        if (fd < 0 || write(fd, "#!/bin/sh\n", 10) != 10)
            perror(path);
        close(fd);
        as(geteuid());
    }
    return path;
}

struct caps {
    uint32_t magic, data[4], root;
};

static long put_caps(const char *file, int version, unsigned root, int how) {
    struct caps caps = {version == 2 ? 0x02000001 : 0x03000001, {1 << 7, 0, 0, 0}, root};
    size_t size = version == 2 ? 20 : 24;
    const char *name = "security.capability";
    if (how == 0)
        return setxattr(file, name, &caps, size, 0);
    if (how == 1)
        return lsetxattr(file, name, &caps, size, 0);
    if (how == 2) {
        int fd = open(file, O_RDONLY);
        return fsetxattr(fd, name, &caps, size, 0);
    }
    struct {
        uint64_t value;
        uint32_t size, flags;
    } args = {(uint64_t)(uintptr_t)&caps, size, 0};
    return syscall(SYS_setxattrat, AT_FDCWD, file, 0, name, &args, sizeof args);
}

static void modes(void) {
    int fd, top = open(dir, O_RDONLY | O_DIRECTORY);
    told("chmod", chmod(at("chmod", 1), 04755));
    told("chmod-sgid", chmod(at("chmod-sgid", 1), 02755));
    told("chmod-both", chmod(at("chmod-both", 1), 06777));
    told("chmod-bits-alone", chmod(at("chmod-bits-alone", 1), 04000));
    fd = open(at("fchmod", 1), O_RDONLY);
    told("fchmod", fchmod(fd, 04755));
    fd = open(at("fchmod-as-type", 1), O_RDWR);
    told("fchmod-as-type", syscall(SYS_fchmod, fd, S_IFREG | 04755));
    at("fchmodat", 1);
    told("fchmodat", syscall(SYS_fchmodat, top, "fchmodat", 04755));
    at("fchmodat2", 1);
    told("fchmodat2", syscall(SYS_fchmodat2, top, "fchmodat2", 04755, 0));
    at("fchmodat2-nofollow", 1);
    told("fchmodat2-nofollow", syscall(SYS_fchmodat2, top, "fchmodat2-nofollow", 04755, AT_SYMLINK_NOFOLLOW));
    fd = open(at("fchmodat2-empty", 1), O_PATH);
    told("fchmodat2-empty", syscall(SYS_fchmodat2, fd, "", 04755, AT_EMPTY_PATH));
    fd = open(at("proc-self-fd", 1), O_PATH);
    snprintf(other, sizeof other, "/proc/self/fd/%d", fd);
    told("proc-self-fd", chmod(other, 04755));
    fd = open(at("proc-pid-fd", 1), O_PATH);
    snprintf(other, sizeof other, "/proc/%d/fd/%d", getpid(), fd);
    told("proc-pid-fd", chmod(other, 04755));
    at("proc-self-cwd", 1);
    if (chdir(dir))
        perror(dir);
    told("proc-self-cwd", chmod("/proc/self/cwd/proc-self-cwd", 04755));
    at("relative", 1);
    told("relative", chmod("./relative", 04755));
    at("link-target", 1);
    snprintf(other, sizeof other, "/tmp/link-%d", getpid());
    if (symlink(path, other))
        perror(other);
    told("link-target", chmod(other, 04755));
    unlink(other);
    as(owner);
    mkdir(at("directory", 0), 0755);
    as(geteuid());
    told("directory-sgid", chmod(path, 02755));
    told("directory-suid", chmod(path, 04755));
    // A second name, and one that comes after.
    at("second-name", 1);
    snprintf(other, sizeof other, "%s/second-name-other", dir);
    as(owner);
    if (link(path, other))
        perror(other);
    as(geteuid());
    told("second-name", chmod(other, 04755));
}

static void creations(void) {
    as(owner);
#ifdef SYS_open
    told("open", syscall(SYS_open, at("open", 0), O_CREAT | O_WRONLY, 04755));
    told("open-excl", syscall(SYS_open, at("open-excl", 0), O_CREAT | O_EXCL | O_RDWR, 06755));
#endif
    told("openat", openat(AT_FDCWD, at("openat", 0), O_CREAT | O_WRONLY | O_TRUNC, 02755));
    at("openat-existing", 1);
    as(owner);
    told("openat-existing", openat(AT_FDCWD, path, O_CREAT | O_WRONLY, 04755));
    told("creat", creat(at("creat", 0), 04755));
    int fd = open(dir, O_TMPFILE | O_RDWR, 04755);
    told("tmpfile", fd);
    snprintf(other, sizeof other, "/proc/self/fd/%d", fd);
    if (fd >= 0)
        linkat(AT_FDCWD, other, AT_FDCWD, at("tmpfile", 0), AT_SYMLINK_FOLLOW);
    told("mknod", mknod(at("mknod", 0), S_IFREG | 04755, 0));
    told("mknodat", mknodat(AT_FDCWD, at("mknodat", 0), S_IFREG | 06755, 0));
    struct open_how how = {.flags = O_CREAT | O_WRONLY, .mode = 04755};
    told("openat2", syscall(SYS_openat2, AT_FDCWD, at("openat2", 0), &how, sizeof how));
    as(geteuid());
}

static void capabilities(void) {
    told("caps-v2", put_caps(at("caps-v2", 1), 2, 0, 0));
    told("caps-v3", put_caps(at("caps-v3", 1), 3, 0, 0));
    told("caps-v3-owner", put_caps(at("caps-v3-owner", 1), 3, owner, 0));
    told("caps-l", put_caps(at("caps-l", 1), 3, owner, 1));
    told("caps-f", put_caps(at("caps-f", 1), 3, owner, 2));
    told("caps-at", put_caps(at("caps-at", 1), 3, owner, 3));
}

// From the sandbox's own files: what has the bits already must not get over.
static void moves(void) {
    snprintf(other, sizeof other, "/tmp/moved-%d", getpid());
    close(open(other, O_CREAT | O_WRONLY, 0755));
    if (chmod(other, 04755))
        perror("the bits on an own file");
    at("moved", 0);
    told("rename", rename(other, path));
    told("link", link(other, path));
    unlink(other);
}

// As who is in a root of their own, where there is no /proc.
static void in_chroot(void) {
    at("chroot", 1);
    fflush(stdout);
    if (fork() == 0) {
        if (chroot(dir)) {
            told("chroot", -1);
            _exit(0);
        }
        told("chroot", chmod("/chroot", 04755));
        _exit(0);
    }
    wait(NULL);
}

int main(int argc, char **argv) {
    (void)argc;
    dir = argv[1];
    owner = atoi(argv[2]);
    umask(0);
    modes();
    creations();
    capabilities();
    moves();
    in_chroot();
    // Not a way at all: the kernel leaves the bits out.
    as(owner);
    mkdir(at("mkdir", 0), 06755);
}
