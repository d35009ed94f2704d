// Calls that a broker makes for us, and what comes of each: the same as without one, or the broker is no stand-in. Arguments:
// a directory, and `root` or a number of a user that it becomes first.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#ifndef SYS_fchmodat2
#define SYS_fchmodat2 452
#endif

static const char *dir;
static unsigned user;

static const char *error(long done) { return done >= 0 ? "done" : strerrorname_np(errno); }

static unsigned mode_of(const char *name) {
    struct stat stat;
    return lstat(name, &stat) ? 0 : stat.st_mode & 07777;
}

static const char *fresh(const char *name) {
    unlink(name);
    close(open(name, O_CREAT | O_WRONLY, 0600));
    return name;
}

#define SAY(what, call)                                                                                                \
    do {                                                                                                               \
        errno = 0;                                                                                                     \
        long done_ = (call);                                                                                           \
        printf("%s: %s\n", what, error(done_));                                                                        \
    } while (0)
#define MODE(name) printf("  %s %o\n", name, mode_of(name))

static void paths(void) {
    char absolute[5000];
    SAY("relative", chmod(fresh("a"), 04755));
    MODE("a");
    snprintf(absolute, sizeof absolute, "%s/b", dir);
    SAY("absolute", chmod(fresh(absolute), 02711));
    MODE("b");
    SAY("dots", chmod("./sub/../b", 06700));
    MODE("b");
    SAY("slash at the end of a file", chmod("b/", 04755));
    SAY("missing", chmod("none", 04755));
    SAY("below a file", chmod("b/c", 04755));
    SAY("empty", chmod("", 04755));
    memset(absolute, 'a', sizeof absolute);
    absolute[300] = 0;
    SAY("a name too long", chmod(absolute, 04755));
    absolute[300] = 'a';
    absolute[4095] = 0;
    SAY("a path as long as may be", chmod(absolute, 04755));
    absolute[4095] = 'a';
    absolute[4096] = 0;
    SAY("a path too long", chmod(absolute, 04755));
    SAY("no path", syscall(SYS_fchmodat, AT_FDCWD, NULL, 04755));
    SAY("a path nowhere", chmod((char *)0x1000, 04755));
    char *pages = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(pages + 4096, 4096, PROT_NONE);
    strcpy(pages + 4094, "a");
    SAY("a path up to the end of memory", chmod(pages + 4094, 04700));
    MODE("a");
    pages[4095] = 'a';
    SAY("a path over the end of memory", chmod(pages + 4094, 04700));
    symlink("b", "link");
    symlink("loop", "loop");
    symlink("none", "dangling");
    SAY("link", chmod("link", 04711));
    MODE("b");
    SAY("loop", chmod("loop", 04711));
    SAY("dangling", chmod("dangling", 04711));
    SAY("file of root", chmod("roots", 04755));
    MODE("roots");
    SAY("behind a closed door", chmod("closed/file", 04755));
    SAY("directory", chmod("sub", 03755));
    MODE("sub");
}

static void descriptors(void) {
    int file = open(fresh("c"), O_RDONLY), top = open(".", O_RDONLY | O_DIRECTORY), sub = open("sub", O_PATH);
    SAY("fchmod", fchmod(file, 04755));
    MODE("c");
    SAY("fchmod of nothing", fchmod(999, 04755));
    SAY("fchmod of -1", fchmod(-1, 04755));
    SAY("fchmodat", syscall(SYS_fchmodat, top, "c", 02755));
    MODE("c");
    SAY("fchmodat from a path", syscall(SYS_fchmodat, sub, "../c", 06755));
    MODE("c");
    SAY("fchmodat from a file", syscall(SYS_fchmodat, file, "c", 06755));
    SAY("fchmodat from nothing", syscall(SYS_fchmodat, 999, "c", 06755));
    SAY("fchmodat from nothing, absolute", syscall(SYS_fchmodat, 999, "/none", 06755));
    SAY("fchmodat2 of a link", syscall(SYS_fchmodat2, top, "link", 04755, AT_SYMLINK_NOFOLLOW));
    SAY("fchmodat2 of a file", syscall(SYS_fchmodat2, top, "c", 04755, AT_SYMLINK_NOFOLLOW));
    SAY("fchmodat2 empty", syscall(SYS_fchmodat2, file, "", 02711, AT_EMPTY_PATH));
    MODE("c");
    SAY("fchmodat2 empty without the flag", syscall(SYS_fchmodat2, file, "", 02711, 0));
    SAY("fchmodat2 with other flags", syscall(SYS_fchmodat2, top, "c", 02711, 0x4000));
    char own[64];
    snprintf(own, sizeof own, "/proc/self/fd/%d", file);
    SAY("by /proc/self/fd", chmod(own, 04701));
    MODE("c");
    SAY("by /proc/self/fd of nothing", chmod("/proc/self/fd/999", 04701));
    close(top), close(sub), close(file);
}

static void opened(const char *what, int fd, const char *name) {
    struct stat stat;
    printf("%s: %s", what, error(fd));
    if (fd >= 0 && !fstat(fd, &stat)) {
        int flags = fcntl(fd, F_GETFL) & (O_ACCMODE | O_APPEND | O_NONBLOCK | O_SYNC);
        printf(" number %d flags %o cloexec %d mode %o size %ld same %d", fd, flags, fcntl(fd, F_GETFD),
               stat.st_mode & 07777, (long)stat.st_size, stat.st_uid == geteuid());
        // Nothing, or the kernel would take the bits away from all but the host's root.
        printf(" write %s", error(write(fd, "", 0)));
        close(fd);
    }
    printf(" at %s %o\n", name, mode_of(name));
}

static void creations(void) {
    umask(027);
    opened("open", open("o1", O_CREAT | O_WRONLY, 04755), "o1");
    opened("open again", open("o1", O_CREAT | O_RDWR | O_APPEND, 02755), "o1");
    opened("open exclusive", open("o1", O_CREAT | O_WRONLY | O_EXCL, 04755), "o1");
    int full = open("full", O_CREAT | O_WRONLY, 0600);
    printf("full %ld\n", (long)write(full, "content", 7));
    close(full);
    opened("open something full", open("full", O_CREAT | O_RDWR, 06755), "full");
    opened("open truncating", open("full", O_CREAT | O_WRONLY | O_TRUNC, 06755), "full");
    opened("open to read", open("o2", O_CREAT | O_RDONLY | O_CLOEXEC, 06777), "o2");
    opened("open all flags", open("o3", O_CREAT | O_RDWR | O_EXCL | O_NONBLOCK | O_SYNC | O_NOCTTY, 04644), "o3");
    opened("creat", creat("o4", 02770), "o4");
    opened("openat", openat(open("sub", O_PATH), "o5", O_CREAT | O_WRONLY, 04755), "sub/o5");
    opened("through a link", open("link", O_CREAT | O_WRONLY, 04755), "b");
    opened("through a link, not followed", open("link", O_CREAT | O_WRONLY | O_NOFOLLOW, 04755), "link");
    opened("a link, exclusive", open("link", O_CREAT | O_WRONLY | O_EXCL, 04755), "link");
    opened("a directory", open("sub", O_CREAT | O_WRONLY, 04755), "sub");
    opened("a slash at the end", open("o6/", O_CREAT | O_WRONLY, 04755), "o6");
    opened("no directory", open("none/o7", O_CREAT | O_WRONLY, 04755), "none");
    opened("below a file", open("o1/o7", O_CREAT | O_WRONLY, 04755), "o1/o7");
    opened("empty", open("", O_CREAT | O_WRONLY, 04755), "");
    opened("in a closed directory", open("closed/o8", O_CREAT | O_WRONLY, 04755), "closed/o8");
    opened("a file of root", open("roots", O_CREAT | O_WRONLY, 04755), "roots");
    struct rlimit was, none;
    getrlimit(RLIMIT_NOFILE, &was);
    none = was;
    none.rlim_cur = 3;
    setrlimit(RLIMIT_NOFILE, &none);
    int fd = open("o9", O_CREAT | O_WRONLY, 04755);
    int why = errno;
    setrlimit(RLIMIT_NOFILE, &was);
    printf("without a descriptor: %s\n", fd < 0 ? strerrorname_np(why) : "done");
    umask(0);
}

static void attributes(void) {
    char value[24] = "abcdefghijklmnopqrstuvw", got[64], name[400];
    fresh("x");
    SAY("attribute", setxattr("x", "user.one", value, 24, 0));
    printf("  %ld %.24s\n", (long)getxattr("x", "user.one", got, 64), got);
    SAY("attribute again", setxattr("x", "user.one", value, 20, XATTR_CREATE));
    SAY("attribute replaced", setxattr("x", "user.one", value, 20, XATTR_REPLACE));
    printf("  %ld\n", (long)getxattr("x", "user.one", got, 64));
    SAY("attribute missing", setxattr("x", "user.two", value, 20, XATTR_REPLACE));
    SAY("attribute with other flags", setxattr("x", "user.two", value, 20, 8));
    SAY("attribute without a value", setxattr("x", "user.two", (void *)0x1000, 20, 0));
    SAY("attribute of four gigabytes", syscall(SYS_setxattr, "x", "user.two", value, (1UL << 32) + 20, 0));
    SAY("attribute of half of all memory", syscall(SYS_setxattr, "x", "user.two", value, (1UL << 46) + 24, 0));
    SAY("attribute without a name", setxattr("x", "", value, 20, 0));
    SAY("attribute of no kind", setxattr("x", "nothing", value, 20, 0));
    memset(name, 'a', sizeof name);
    memcpy(name, "user.", 5);
    name[255] = 0;
    SAY("attribute with the longest name", setxattr("x", name, value, 20, 0));
    name[255] = 'a', name[256] = 0;
    SAY("attribute with a longer name", setxattr("x", name, value, 20, 0));
    SAY("attribute of a link", lsetxattr("link", "user.one", value, 20, 0));
    int fd = open("x", O_RDONLY);
    SAY("attribute of what is open", fsetxattr(fd, "user.three", value, 20, 0));
    close(fd);
    SAY("attribute of a file of root", setxattr("roots", "user.one", value, 20, 0));
}

static void *of_a_thread(void *nothing) {
    // A working directory, descriptors and an identity of this thread alone.
    if (unshare(CLONE_FS | CLONE_FILES) || chdir("sub"))
        perror("unshare");
    fresh("thread");
    int fd = open("thread", O_RDONLY);
    SAY("a thread's directory", chmod("thread", 04755));
    SAY("a thread's descriptor", fchmod(fd, 02755));
    MODE("thread");
    if (user == 0) {
        setfsuid(4242);
        SAY("a thread's user", chmod("thread", 06755));
        setfsuid(0);
    }
    return nothing;
}

static void callers(void) {
    pthread_t thread;
    fflush(stdout);
    pthread_create(&thread, NULL, of_a_thread, NULL);
    pthread_join(thread, NULL);
    fflush(stdout);
    pid_t child = vfork();
    if (child == 0) {
        _exit(chmod("a", 04711) ? errno : 0);
    }
    int status;
    waitpid(child, &status, 0);
    printf("after a vfork: %d\n", WEXITSTATUS(status));
    fflush(stdout);
    if (user == 0 && fork() == 0) {
        if (chroot("jail") || chdir("/"))
            perror("chroot");
        SAY("in a root of its own", chmod("/inner", 04755));
        SAY("up from it", chmod("/../../a", 04711));
        SAY("a name of /proc in it", chmod("/proc/self/fd/0", 04755));
        fflush(stdout);
        _exit(0);
    }
    wait(NULL);
    fflush(stdout);
    if (user == 0 && fork() == 0) {
        struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
        struct __user_cap_data_struct none[2] = {{0}};
        syscall(SYS_capset, &header, none);
        SAY("root without capabilities", chmod("theirs", 04755));
        SAY("root without capabilities, own", chmod("roots", 04755));
        fflush(stdout);
        _exit(0);
    }
    wait(NULL);
    fflush(stdout);
    if (user == 0 && fork() == 0) {
        // A group that it is not in: the kernel leaves the bit out, and says nothing.
        gid_t group = 77;
        setgroups(1, &group);
        chown(fresh("g1"), 4242, 77), chown(fresh("g2"), 4242, 78);
        setregid(4242, 4242);
        setreuid(4242, 4242);
        SAY("bit of a group that it is in", chmod("g1", 02755));
        SAY("bit of a group that it is not in", chmod("g2", 02755));
        MODE("g1");
        MODE("g2");
        fflush(stdout);
        _exit(0);
    }
    wait(NULL);
}

static void nothing(int signal) { (void)signal; }

static void interrupted(void) {
    struct sigaction action = {.sa_handler = nothing, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    struct itimerval often = {{0, 500}, {0, 500}}, never = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &often, NULL);
    int failed = 0;
    char name[32];
    for (int i = 0; i < 100; i++) {
        snprintf(name, sizeof name, "i%d", i);
        int fd = open(name, O_CREAT | O_EXCL | O_WRONLY, 04700);
        failed += fd < 0 || mode_of(name) != 04700 || chmod(name, 02711);
        close(fd);
    }
    setitimer(ITIMER_REAL, &never, NULL);
    printf("interrupted often: %d failed\n", failed);
}

int main(int argc, char **argv) {
    (void)argc;
    dir = argv[1];
    user = atoi(argv[2]);
    umask(0);
    // What is open already would shift the numbers.
    syscall(SYS_close_range, 3, ~0u, 0);
    if (chdir(dir))
        return 1;
    mkdir("sub", 0777), mkdir("closed", 0700), mkdir("jail", 0755);
    close(open("roots", O_CREAT | O_WRONLY, 0644));
    close(open("closed/file", O_CREAT | O_WRONLY, 0644));
    close(open("jail/inner", O_CREAT | O_WRONLY, 0644));
    close(open("theirs", O_CREAT | O_WRONLY, 0644));
    chown("theirs", 4242, 4242);
    chmod(".", 0777);
    if (user) {
        setgroups(0, NULL);
        if (setgid(user) || setuid(user))
            return 1;
    }
    paths();
    descriptors();
    creations();
    attributes();
    callers();
    interrupted();
    return 0;
}
