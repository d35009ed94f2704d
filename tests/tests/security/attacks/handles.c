// Opens a file by its handle, as no path stops it: the handle of a file that is named, and the roots of file systems by
// the numbers that they usually have.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int count, char **words) {
    if (count != 2)
        return 2;
    struct file_handle *handle = calloc(1, sizeof *handle + 128);
    int mount_id, from = open("/tmp", O_RDONLY | O_DIRECTORY);
    handle->handle_bytes = 128;
    long named = name_to_handle_at(AT_FDCWD, words[1], handle, &mount_id, 0);
    printf("naming it %s\n", named ? strerrorname_np(errno) : "done");
    int mount = open(words[1], O_RDONLY);
    long done = open_by_handle_at(mount < 0 ? from : mount, handle, O_RDONLY);
    printf("opening it %s\n", done < 0 ? strerrorname_np(errno) : "done");
    // Of ext4: the root is 2 and xfs has 128.
    for (int root = 2; root <= 128; root += 126) {
        handle->handle_bytes = 8, handle->handle_type = 1;
        memset(handle->f_handle, 0, 8);
        memcpy(handle->f_handle, &root, 4);
        done = open_by_handle_at(from, handle, O_RDONLY);
        printf("opening the root %d %s\n", root, done < 0 ? strerrorname_np(errno) : "done");
    }
}
