// A program of the host: who hears it inside has started something from outside. It needs neither a library nor an
// interpreter, and can be one itself. The word that it says is put into its file before it is started.
#define PLACE "@@ the word that it says is written over this text, which is long enough for it @@"

static volatile const char word[] = PLACE;

static long call(long number, long one, long two, long three) {
#ifdef __x86_64__
    long done;
    __asm__ volatile("syscall" : "=a"(done) : "a"(number), "D"(one), "S"(two), "d"(three) : "rcx", "r11", "memory");
    return done;
#else
    register long x8 __asm__("x8") = number, x0 __asm__("x0") = one, x1 __asm__("x1") = two, x2 __asm__("x2") = three;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2) : "memory");
    return x0;
#endif
}

#ifdef __x86_64__
enum { WRITE = 1, EXIT = 231 };
#else
enum { WRITE = 64, EXIT = 94 };
#endif

void _start(void) {
    long length = 0;
    while (word[length])
        length++;
    call(WRITE, 1, (long)word, length);
    for (;;)
        call(EXIT, 0, 0, 0);
}
