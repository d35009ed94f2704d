// Walks everything that a process can reach by a name or a number that it already has, and prints one line for each thing:
// its descriptors, /proc, mounts, devices, files with more rights than their reader, sockets, namespaces, capabilities,
// environment. What changes from run to run (process numbers, sizes, inode numbers) is normalised, so that two runs say the
// same. Nothing is written: files are opened, and at most one byte is read.
//
// The arguments are the sections to print; none is all. One that is a path is where the section of files begins.
#define _GNU_SOURCE
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/xattr.h>
#include <unistd.h>

extern char **environ;

#define LINE 8192

static char *read_file(const char *path) {
    static char buffer[1 << 18];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return NULL;
    size_t filled = 0;
    for (ssize_t got; filled < sizeof buffer - 1;) {
        if ((got = read(fd, buffer + filled, sizeof buffer - 1 - filled)) > 0)
            filled += got;
        else if (got == 0 || errno != EINTR)
            break;
    }
    close(fd);
    buffer[filled] = 0;
    return buffer;
}

// Copies the text with every number of at least `digits` digits as N.
static void without_numbers(char *to, const char *from, int digits) {
    while (*from) {
        int run = 0;
        while (isdigit((unsigned char)from[run]))
            run++;
        if (run >= digits) {
            *to++ = 'N';
            from += run;
        } else if (run) {
            memcpy(to, from, run);
            to += run;
            from += run;
        } else {
            *to++ = *from++;
        }
    }
    *to = 0;
}

// ---- Mounts ----

struct mount {
    int id;
    char at[LINE];
    char type[64];
};

static struct mount *mounts;
static int mount_count;

// mountinfo escapes white space as octal numbers; a space would end our field, so it stays escaped.
static void read_mounts(int print) {
    char *text = read_file("/proc/self/mountinfo");
    if (!text)
        return;
    text = strdup(text);
    for (char *save, *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        char root[LINE], at[LINE], options[LINE], type[64], source[LINE], super[LINE] = "", clean[LINE];
        int id, used = 0;
        if (sscanf(line, "%d %*d %*s %8191s %8191s %8191s%n", &id, root, at, options, &used) != 4)
            continue;
        const char *rest = strstr(line + used, " - ");
        if (!rest || sscanf(rest + 3, "%63s %8191s %8191s", type, source, super) < 2)
            continue;
        char tags[256] = "private";
        if (rest > line + used + 1)
            snprintf(tags, sizeof tags, "%.*s", (int)(rest - line - used - 1), line + used + 1);
        mounts = realloc(mounts, (mount_count + 1) * sizeof *mounts);
        mounts[mount_count].id = id;
        strcpy(mounts[mount_count].at, at);
        strcpy(mounts[mount_count++].type, type);
        if (print) {
            without_numbers(clean, super, 3);
            char plain_tags[256];
            without_numbers(plain_tags, tags, 1);
            printf("mount %s type=%s source=%s root=%s %s %s super=%s\n", at, type, source, root, options, plain_tags, clean);
        }
    }
    free(text);
}

static const struct mount *mount_by_id(int id) {
    for (int at = 0; at < mount_count; at++)
        if (mounts[at].id == id)
            return &mounts[at];
    return NULL;
}

// The mount that an open file lies on; NULL is one that has no place in here.
static const struct mount *mount_of(int fd) {
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", fd);
    char *text = read_file(path), *found = text ? strstr(text, "mnt_id:") : NULL;
    return found ? mount_by_id(atoi(found + 7)) : NULL;
}

// ---- Descriptors ----

static const char *kind_of(mode_t mode) {
    switch (mode & S_IFMT) {
    case S_IFREG: return "file";
    case S_IFDIR: return "directory";
    case S_IFCHR: return "character-device";
    case S_IFBLK: return "block-device";
    case S_IFIFO: return "pipe";
    case S_IFSOCK: return "socket";
    case S_IFLNK: return "link";
    default: return "anonymous";
    }
}

// Its numbers; terminals have one each.
static const char *device_of(const struct stat *about) {
    static char numbers[64];
    const unsigned terminal = 136;
    if (major(about->st_rdev) == terminal)
        return "136:N";
    snprintf(numbers, sizeof numbers, "%u:%u", major(about->st_rdev), minor(about->st_rdev));
    return numbers;
}

// Where `..` ends: at the root that everybody has in here, or anywhere else.
static const char *way_up(int fd) {
    struct stat root, here, above;
    int at = openat(fd, ".", O_PATH | O_CLOEXEC);
    stat("/", &root);
    while (at >= 0 && !fstat(at, &here)) {
        int up = openat(at, "..", O_PATH | O_CLOEXEC);
        close(at);
        if (up < 0 || fstat(up, &above))
            return "closed";
        at = up;
        if (above.st_dev == here.st_dev && above.st_ino == here.st_ino)
            break;
    }
    close(at);
    return here.st_dev == root.st_dev && here.st_ino == root.st_ino ? "root" : "ELSEWHERE";
}

static void descriptors(void) {
    int limit = 65536;
    for (int fd = 0; fd < limit; fd++) {
        struct stat about;
        if (fstat(fd, &about))
            continue;
        char path[64], target[LINE], clean[LINE];
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        ssize_t length = readlink(path, target, sizeof target - 1);
        target[length < 0 ? 0 : length] = 0;
        without_numbers(clean, target, 1);
        int flags = fcntl(fd, F_GETFL);
        const char *access = (flags & O_PATH)                       ? "path"
                             : (flags & O_ACCMODE) == O_RDONLY      ? "read"
                             : (flags & O_ACCMODE) == O_WRONLY      ? "write"
                                                                    : "read-write";
        printf("fd %d %s %s to=%s", fd, kind_of(about.st_mode), access, clean);
        if (S_ISCHR(about.st_mode) || S_ISBLK(about.st_mode))
            printf(" device=%s", device_of(&about));
        if (S_ISREG(about.st_mode) || S_ISDIR(about.st_mode) || S_ISCHR(about.st_mode) || S_ISBLK(about.st_mode)) {
            const struct mount *mount = mount_of(fd);
            printf(" mount=%s", mount ? mount->at : "none");
        }
        if (S_ISDIR(about.st_mode))
            printf(" up=%s", way_up(fd));
        printf("%s%s%s\n", flags & O_APPEND ? " append" : "", flags & O_NONBLOCK ? " nonblock" : "",
               fcntl(fd, F_GETFD) & FD_CLOEXEC ? " cloexec" : "");
    }
}

// ---- /proc ----

static int own_pid;

// A path of /proc as it is printed: this process is `self`, other numbers are N, but process 1 stays.
static void label_of(char *label, const char *path) {
    *label = 0;
    char copy[LINE];
    snprintf(copy, sizeof copy, "%s", path);
    int depth = 0;
    for (char *save, *part = strtok_r(copy, "/", &save); part; part = strtok_r(NULL, "/", &save), depth++) {
        size_t digits = strspn(part, "0123456789");
        char clean[LINE];
        if (!part[digits] && depth == 1 && atoi(part) == own_pid)
            strcpy(clean, "self");
        else if (!part[digits] && depth == 1 && atoi(part) == 1)
            strcpy(clean, "1");
        else if (!part[digits])
            strcpy(clean, "N");
        else if (!strncmp(part, "cpu", 3) && isdigit((unsigned char)part[3]))
            without_numbers(clean, part, 1);
        else
            strcpy(clean, part);
        strcat(strcat(label, "/"), clean);
    }
}

static volatile sig_atomic_t ticks;
static void tick(int signal) { (void)signal, ticks++; }

// One that waits is interrupted: some files of the kernel answer only when something happens.
static void keep_ticking(int every) {
    struct sigaction how = {.sa_handler = tick};
    sigaction(SIGALRM, &how, NULL);
    struct itimerval often = {{0, every}, {0, every}};
    setitimer(ITIMER_REAL, &often, NULL);
}

static void proc_file(const char *path, const char *label) {
    char byte;
    int can_read = 0, can_write;
    const char *cover = "";
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd >= 0) {
        can_read = read(fd, &byte, 1) >= 0 || (errno != EPERM && errno != EACCES);
        const struct mount *mount = mount_of(fd);
        if (mount && strcmp(mount->type, "proc"))
            cover = strcmp(mount->type, "tmpfs") ? " covered-by=other" : " covered-by=tmpfs";
        close(fd);
    }
    fd = open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    can_write = fd >= 0;
    close(fd);
    if (can_read || can_write)
        printf("proc %s%s %s%s\n", can_read ? "r" : "-", can_write ? "w" : "-", label, cover);
}

static int ends_with(const char *text, const char *end) {
    size_t length = strlen(text), wanted = strlen(end);
    return length >= wanted && !strcmp(text + length - wanted, end);
}

static void walk_proc(const char *path) {
    char label[LINE];
    label_of(label, path);
    DIR *dir = opendir(path);
    if (!dir)
        return;
    const struct mount *mount = mount_of(dirfd(dir));
    int covered = mount && strcmp(mount->type, "proc");
    printf("proc list %s%s\n", label, covered ? " covered-by=tmpfs" : "");
    // Its own descriptors are a section of their own, and the ranges of its memory are different each time.
    int own = !strncmp(label, "/proc/self/", 11);
    int skip = own && (ends_with(label, "/fd") || ends_with(label, "/fdinfo") || ends_with(label, "/map_files"));
    for (struct dirent *entry; !skip && (entry = readdir(dir));) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
            continue;
        char below[LINE], target[LINE], clean[LINE];
        struct stat about;
        if (snprintf(below, sizeof below, "%s/%s", path, entry->d_name) >= LINE || lstat(below, &about))
            continue;
        label_of(label, below);
        if (S_ISDIR(about.st_mode)) {
            walk_proc(below);
        } else if (S_ISLNK(about.st_mode)) {
            ssize_t length = readlink(below, target, sizeof target - 1);
            if (length < 0)
                continue;
            target[length] = 0;
            without_numbers(clean, target, 1);
            int fd = open(below, O_PATH | O_CLOEXEC);
            printf("proc link %s to=%s%s\n", label, clean, fd < 0 ? " dangling" : "");
            close(fd);
        } else {
            proc_file(below, label);
        }
    }
    closedir(dir);
}

// ---- Devices and files ----

static void walk_devices(const char *path) {
    DIR *dir = opendir(path);
    printf("dev %s%s %s\n", dir ? "list" : "closed", access(path, W_OK) ? "" : " writable", path);
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
            continue;
        char below[LINE], target[LINE], clean[LINE];
        struct stat about;
        snprintf(below, sizeof below, "%s/%s", path, entry->d_name);
        if (lstat(below, &about))
            continue;
        without_numbers(clean, below, 1);
        if (S_ISDIR(about.st_mode)) {
            walk_devices(below);
        } else if (S_ISLNK(about.st_mode)) {
            ssize_t length = readlink(below, target, sizeof target - 1);
            target[length < 0 ? 0 : length] = 0;
            printf("dev link %s to=%s\n", clean, target);
        } else {
            int readable = open(below, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
            int writable = open(below, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
            int there = readable >= 0 || errno == ENXIO; // the terminal of who has none
            printf("dev %s%s %s %s", there ? "r" : "-", writable >= 0 || errno == ENXIO ? "w" : "-", kind_of(about.st_mode), clean);
            if (S_ISCHR(about.st_mode) || S_ISBLK(about.st_mode))
                printf(" %s", device_of(&about));
            puts("");
            close(readable);
            close(writable);
        }
    }
    if (dir)
        closedir(dir);
}

static void knock(const char *path) {
    static const int types[] = {SOCK_STREAM, SOCK_DGRAM, SOCK_SEQPACKET};
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const char *answer = "refused";
    if (strlen(path) >= sizeof address.sun_path)
        return;
    strcpy(address.sun_path, path);
    for (unsigned at = 0; at < 3; at++) {
        int fd = socket(AF_UNIX, types[at] | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (fd >= 0 && (!connect(fd, (struct sockaddr *)&address, sizeof address) || errno == EAGAIN))
            answer = "CONNECTS";
        close(fd);
    }
    printf("unix %s %s\n", answer, path);
}

// By its mode alone, which is cheap; who seems to be allowed is asked for.
static int may_be_writable(const struct stat *about) {
    return about->st_mode & (about->st_uid == geteuid() ? 0200 : 0022);
}

static void look_at_file(const char *path, const struct stat *about, int said) {
    if (about->st_mode & 0111) {
        char caps[64];
        int marked = about->st_mode & (S_ISUID | S_ISGID);
        if (marked || lgetxattr(path, "security.capability", caps, sizeof caps) > 0) {
            struct statvfs system;
            int inert = prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1 && !statvfs(path, &system) && system.f_flag & ST_NOSUID;
            printf("privileged %s %s\n", inert ? "inert" : "EFFECTIVE", path);
        }
    }
    if (!said && may_be_writable(about) && !access(path, W_OK))
        printf("writable file %s\n", path);
}

// What lies below a directory that can be written is not said again, but on another mount.
static void walk_files(const char *path, dev_t above, int said) {
    struct stat about;
    int fd = open(*path ? path : "/", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (stat(*path ? path : "/", &about))
        return;
    if (about.st_dev != above)
        said = 0;
    if (!said && !access(*path ? path : "/", W_OK)) {
        printf("writable directory %s\n", *path ? path : "/");
        said = 1;
    }
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        char below[LINE];
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..") || entry->d_type == DT_LNK ||
            snprintf(below, sizeof below, "%s/%s", path, entry->d_name) >= LINE)
            continue;
        if (!strcmp(below, "/proc") || !strcmp(below, "/dev")) // sections of their own
            continue;
        struct stat found;
        if (fstatat(dirfd(dir), entry->d_name, &found, AT_SYMLINK_NOFOLLOW))
            continue;
        if (S_ISDIR(found.st_mode)) {
            walk_files(below, about.st_dev, said);
        } else if (S_ISREG(found.st_mode)) {
            look_at_file(below, &found, said);
        } else if (S_ISSOCK(found.st_mode)) {
            knock(below);
        } else if (S_ISCHR(found.st_mode) || S_ISBLK(found.st_mode)) {
            int opened = open(below, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
            printf("device %s %u:%u %s\n", opened >= 0 ? "OPENS" : "closed", major(found.st_rdev), minor(found.st_rdev), below);
            close(opened);
        }
    }
    if (dir)
        closedir(dir);
}

// ---- Sockets of others ----

static void listeners(void) {
    static const char *tables[] = {"tcp", "tcp6", "udp", "udp6", "udplite", "udplite6", "raw", "raw6", "icmp", "icmp6"};
    for (unsigned at = 0; at < sizeof tables / sizeof *tables; at++) {
        char path[64], local[128];
        snprintf(path, sizeof path, "/proc/net/%s", tables[at]);
        char *text = read_file(path);
        char *save, *line = text ? strtok_r(text, "\n", &save) : NULL;
        while (line && (line = strtok_r(NULL, "\n", &save)))
            if (sscanf(line, " %*d: %127s", local) == 1)
                printf("listener %s %s\n", tables[at], local);
    }
    char *text = read_file("/proc/net/unix");
    char *save, *line = text ? strtok_r(text, "\n", &save) : NULL;
    while (line && (line = strtok_r(NULL, "\n", &save))) {
        unsigned type = 0;
        char name[LINE] = "(nameless)";
        sscanf(line, "%*s %*s %*s %*s %x %*s %*s %8191s", &type, name);
        printf("listener unix type=%u %s\n", type, name);
    }
    static const char *objects[] = {"shm", "msg", "sem"};
    for (unsigned at = 0; at < 3; at++) {
        char path[64];
        snprintf(path, sizeof path, "/proc/sysvipc/%s", objects[at]);
        text = read_file(path);
        line = text ? strtok_r(text, "\n", &save) : NULL;
        while (line && (line = strtok_r(NULL, "\n", &save)))
            printf("ipc %s\n", objects[at]);
    }
}

// ---- Who one is ----

static const char *const CAPABILITIES[] = {
    "chown", "dac_override", "dac_read_search", "fowner", "fsetid", "kill", "setgid", "setuid", "setpcap",
    "linux_immutable", "net_bind_service", "net_broadcast", "net_admin", "net_raw", "ipc_lock", "ipc_owner",
    "sys_module", "sys_rawio", "sys_chroot", "sys_ptrace", "sys_pacct", "sys_admin", "sys_boot", "sys_nice",
    "sys_resource", "sys_time", "sys_tty_config", "mknod", "lease", "audit_write", "audit_control", "setfcap",
    "mac_override", "mac_admin", "syslog", "wake_alarm", "block_suspend", "audit_read", "perfmon", "bpf",
    "checkpoint_restore",
};

static void identity(void) {
    char *text = read_file("/proc/self/status");
    for (char *save, *line = text ? strtok_r(text, "\n", &save) : NULL; line; line = strtok_r(NULL, "\n", &save)) {
        static const char *plain[] = {"Umask", "Uid", "Gid", "Groups", "NoNewPrivs", "Seccomp", "Seccomp_filters", "SigBlk", "SigIgn", "NStgid"};
        static const char *sets[] = {"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"};
        char *value = strchr(line, ':');
        if (!value)
            continue;
        *value++ = 0;
        for (unsigned at = 0; at < sizeof plain / sizeof *plain; at++) {
            if (strcmp(line, plain[at]))
                continue;
            printf("identity %s", line);
            char clean[LINE];
            without_numbers(clean, value, strcmp(line, "NStgid") ? 99 : 1);
            for (char *inner, *word = strtok_r(clean, " \t", &inner); word; word = strtok_r(NULL, " \t", &inner))
                printf(" %s", word);
            puts("");
        }
        for (unsigned at = 0; at < sizeof sets / sizeof *sets; at++) {
            if (strcmp(line, sets[at]))
                continue;
            unsigned long long bits = strtoull(value, NULL, 16);
            for (unsigned bit = 0; bit < 64; bit++)
                if (bits >> bit & 1)
                    printf("capability %s %s\n", line + 3, bit < 41 ? CAPABILITIES[bit] : "UNKNOWN");
        }
    }
    printf("identity securebits %d\n", prctl(PR_GET_SECUREBITS, 0, 0, 0, 0));
    printf("identity dumpable %d\n", prctl(PR_GET_DUMPABLE, 0, 0, 0, 0));
    printf("identity session %s\n", getsid(0) == getpid() ? "own" : "inherited");
    printf("identity parent %s\n", getppid() == 0 ? "outside" : getppid() == 1 ? "1" : "other");
    printf("identity nice %d\n", getpriority(PRIO_PROCESS, 0));
    text = read_file("/proc/self/cgroup");
    for (char *save, *line = text ? strtok_r(text, "\n", &save) : NULL; line; line = strtok_r(NULL, "\n", &save)) {
        char clean[LINE], *names = strchr(line, ':');
        without_numbers(clean, names ? names + 1 : line, 1);
        printf("cgroup %s\n", clean);
    }
    DIR *dir = opendir("/proc/self/ns");
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        char path[512], target[256];
        snprintf(path, sizeof path, "/proc/self/ns/%s", entry->d_name);
        ssize_t length = readlink(path, target, sizeof target - 1);
        if (length > 0)
            printf("namespace %s %.*s\n", entry->d_name, (int)length, target);
    }
    for (char **one = environ; *one; one++)
        printf("environ %.*s\n", (int)strcspn(*one, "="), *one);
}

static void limits(void) {
    static const char *names[] = {"cpu", "fsize", "data", "stack", "core", "rss", "nproc", "nofile", "memlock", "as",
                                  "locks", "sigpending", "msgqueue", "nice", "rtprio", "rttime"};
    for (int at = 0; at < 16; at++) {
        struct rlimit limit;
        if (getrlimit(at, &limit))
            continue;
        if (limit.rlim_max == RLIM_INFINITY)
            printf("rlimit %s unlimited\n", names[at]);
        else
            printf("rlimit %s %llu\n", names[at], (unsigned long long)limit.rlim_max);
    }
}

int main(int count, char **wanted) {
    own_pid = getpid();
    // All of it, and written when nothing ticks any more: a write that is interrupted loses what it had.
    static char out[8 << 20];
    setvbuf(stdout, out, _IOFBF, sizeof out);
    keep_ticking(50000);
    static const char *sections[] = {"mounts", "descriptors", "proc", "devices", "files", "listeners", "identity", "limits"};
    const char *below = "";
    for (unsigned at = 0; at < sizeof sections / sizeof *sections; at++) {
        int chosen = count == 1;
        for (int word = 1; word < count; word++) {
            if (*wanted[word] == '/')
                below = wanted[word];
            chosen |= !strcmp(wanted[word], sections[at]);
        }
        if (at == 0)
            read_mounts(chosen); // the others look things up in them
        if (!chosen)
            continue;
        switch (at) {
        case 1: descriptors(); break;
        case 2: walk_proc("/proc"); break;
        case 3: walk_devices("/dev"); break;
        case 4: walk_files(below, 0, 0); break;
        case 5: listeners(); break;
        case 6: identity(); break;
        case 7: limits(); break;
        }
    }
    keep_ticking(0);
}
