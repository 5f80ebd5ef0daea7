// A program that has Python in it: linked in, or in a library of any name, the first argument, that it loads.
#include <dlfcn.h>
#include <stdio.h>

#ifdef LINKED
int Py_BytesMain(int, char **);

int main(int count, char **arguments) { return Py_BytesMain(count, arguments); }
#else
int main(int count, char **arguments) {
    void *library = dlopen(arguments[1], RTLD_NOW | RTLD_GLOBAL);
    int (*run)(int, char **) = library ? (int (*)(int, char **))dlsym(library, "Py_BytesMain") : NULL;
    if (!run) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    arguments[1] = arguments[0];
    return run(count - 1, arguments + 1);
}
#endif
