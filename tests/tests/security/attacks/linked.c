// A program with an interpreter, as every one that is not static has. The kernel opens it by the name that stands in the
// program's file, in the process that is about to become the program.
int main(void) { return 0; }
