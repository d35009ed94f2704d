// Sends a signal to everything that it may, for as long as it lives: commands are hit before they are what they will be.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int count, char **arguments) {
    int number = count > 1 ? atoi(arguments[1]) : SIGKILL;
    for (int signal_number = 1; signal_number < 65; signal_number++)
        signal(signal_number, SIG_IGN);
    puts("begun");
    fflush(stdout);
    for (;;) {
        kill(-1, number);
        usleep(50);
    }
}
