/* A program that launches kernels, for CUDA events to be put around them. What it does is its first argument, how often its second.
 *
 * The driver's functions come by dlsym, those of the per-thread default stream by cuGetProcAddress, as libcudart has them. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef uint64_t handle;
typedef int launcher(handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle, void **, void **);

struct configuration {
    unsigned grid[3], block[3], shared;
    handle stream;
    void *attributes;
    unsigned count;
};

static void *driver;
static launcher *launch_legacy, *launch_own;
static int (*launch_by)(const struct configuration *, handle, void **, void **);
static int (*get)(const char *, void **, int, uint64_t, int *);
static handle context, function;

static const char image[] = "SIMCUDA-IMAGE\nkernel gemm\n";

static void check(int result, const char *what)
{
    if (result) {
        fprintf(stderr, "events: %s returned %d\n", what, result);
        _exit(3);
    }
}

static void *find(const char *name)
{
    void *found = dlsym(driver, name);
    if (!found) {
        fprintf(stderr, "events: %s\n", dlerror());
        _exit(3);
    }
    return found;
}

/* A function of the driver with these arguments, all of them words. */
static int call(const char *name, handle a, handle b, handle c, handle d)
{
    return ((int (*)(handle, handle, handle, handle))find(name))(a, b, c, d);
}

static handle made(const char *name, handle a, handle b)
{
    handle out = 0;
    check(call(name, (handle)&out, a, b, 0), name);
    return out;
}

static handle asked_for(const char *name, uint64_t flags)
{
    void *found = NULL;
    check(get(name, &found, 12000, flags, NULL), name);
    return (handle)found;
}

static void use(handle this)
{
    handle module;
    context = this;
    check(call("cuCtxSetCurrent", context, 0, 0, 0), "cuCtxSetCurrent");
    module = made("cuModuleLoadData", (handle)image, 0);
    function = made("cuModuleGetFunction", module, (handle) "gemm");
}

static void begin(void)
{
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) {
        fprintf(stderr, "events: %s\n", dlerror());
        _exit(3);
    }
    check(call("cuInit", 0, 0, 0, 0), "cuInit");
    *(void **)&get = find("cuGetProcAddress_v2");
    launch_legacy = (launcher *)find("cuLaunchKernel");
    launch_own = (launcher *)asked_for("cuLaunchKernel", 2);
    *(handle *)&launch_by = asked_for("cuLaunchKernelEx", 1);
    use(made("cuDevicePrimaryCtxRetain", 0, 0));
}

static int launch(launcher *by, handle stream)
{
    return by(function, 2, 3, 4, 32, 2, 1, 16, stream, NULL, NULL);
}

static void launches(handle stream, long count)
{
    while (count--)
        check(launch(launch_legacy, stream), "cuLaunchKernel");
}

static void finish(void)
{
    check(call("cuCtxSynchronize", 0, 0, 0, 0), "cuCtxSynchronize");
}

/* Into a stream of its own, and both default streams in each flavour, in all three ways. */
static void *thread(void *count)
{
    handle stream;
    check(call("cuCtxSetCurrent", context, 0, 0, 0), "cuCtxSetCurrent");
    stream = made("cuStreamCreate", 1, 0);
    for (long i = 0; i < (long)count; i++) {
        struct configuration how = {{2, 3, 4}, {32, 2, 1}, 16, i % 2 ? stream : 0, NULL, 0};
        check(launch(launch_legacy, stream), "cuLaunchKernel");
        check(launch(launch_legacy, i % 3), "cuLaunchKernel");
        check(launch(launch_own, 0), "cuLaunchKernel_ptsz");
        check(launch_by(&how, function, NULL, NULL), "cuLaunchKernelEx");
    }
    return NULL;
}

int main(int arguments, char **argument)
{
    const char *what = argument[1];
    long count = arguments > 2 ? atol(argument[2]) : 1000;

    if (!strcmp(what, "stream")) { /* one stream, one launch after the other has ended, as the count says, then all at once */
        handle stream;
        begin();
        stream = made("cuStreamCreate", 1, 0);
        for (long i = 0; i < count; i++) {
            launches(stream, 1);
            if (i < count / 2)
                finish();
        }
        finish();
    } else if (!strcmp(what, "threads")) {
        pthread_t threads[4];
        begin();
        for (int i = 0; i < 4; i++)
            pthread_create(&threads[i], NULL, thread, (void *)count);
        for (int i = 0; i < 4; i++)
            pthread_join(threads[i], NULL);
        finish();
    } else if (!strcmp(what, "capture")) { /* a graph, while others launch, and while the library asks for its events */
        handle captured, other, graph = 0, nodes = 0;
        begin();
        captured = made("cuStreamCreate", 0, 0);
        other = made("cuStreamCreate", 1, 0);
        launches(other, count);
        check(call("cuStreamBeginCapture_v2", captured, 0, 0, 0), "cuStreamBeginCapture_v2");
        launches(captured, count);
        for (int i = 0; i < 20; i++) {
            launches(other, 10);
            usleep(10000);
        }
        launches(captured, count);
        check(call("cuStreamEndCapture", captured, (handle)&graph, 0, 0), "cuStreamEndCapture");
        check(call("cuGraphGetNodes", graph, 0, (handle)&nodes, 0), "cuGraphGetNodes");
        finish();
        printf("%d\n", (int)nodes);
    } else if (!strcmp(what, "contexts")) { /* that come and go, the same handle for another */
        handle before = 0, same = 0;
        begin();
        for (long i = 0; i < count; i++) {
            handle own = made("cuCtxCreate_v2", 0, 0);
            same += own == before;
            before = own;
            use(own);
            launches(0, 100);
            if (i % 2)
                finish();
            check(call("cuCtxDestroy_v2", own, 0, 0, 0), "cuCtxDestroy_v2");
        }
        printf("%ld\n", (long)same);
        for (long i = 0; i < count; i++) {
            use(made("cuDevicePrimaryCtxRetain", 0, 0));
            launches(0, 100);
            finish();
            check(call(i % 2 ? "cuDevicePrimaryCtxReset_v2" : "cuDevicePrimaryCtxRelease_v2", 0, 0, 0, 0), "the end");
        }
    } else if (!strcmp(what, "refused")) {
        begin();
        for (long i = 0; i < count; i++) {
            if (launch_legacy(function, 0, 1, 1, 1, 1, 1, 0, 0, NULL, NULL) == 0)
                return 4;
            launches(0, 1);
        }
        finish();
    } else if (!strcmp(what, "many")) { /* so many under way at once */
        begin();
        launches(0, count);
        finish();
        usleep(300000);
        launches(0, 100);
        finish();
    } else if (!strcmp(what, "graphs")) {
        handle stream, graph = 0, executable;
        begin();
        stream = made("cuStreamCreate", 1, 0);
        check(call("cuStreamBeginCapture_v2", stream, 0, 0, 0), "cuStreamBeginCapture_v2");
        launches(stream, 3);
        check(call("cuStreamEndCapture", stream, (handle)&graph, 0, 0), "cuStreamEndCapture");
        executable = made("cuGraphInstantiateWithFlags", graph, 0);
        for (long i = 0; i < count; i++)
            check(call("cuGraphLaunch", executable, stream, 0, 0), "cuGraphLaunch");
        finish();
    } else if (!strcmp(what, "fork")) {
        begin();
        launches(0, count);
        for (int i = 0; i < 20; i++) {
            int status;
            pid_t child = fork();
            if (!child)
                exit(launch(launch_legacy, 0) ? 5 : 6); /* CUDA does not work here. Whatever it answers, it must answer. */
            if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 5)
                return 4;
            launches(0, 10);
        }
        finish();
    } else if (!strcmp(what, "names")) { /* whatever else is asked for by name is as ever */
        begin();
        void *(*next)(size_t) = dlsym(RTLD_NEXT, "malloc"), *(*usual)(size_t) = dlsym(RTLD_DEFAULT, "malloc");
        printf("%d %d", next == usual, next == malloc);
        printf(" %d", (launcher *)asked_for("cuLaunchKernel", 1) == launch_legacy);
        printf(" %d", launch_own != launch_legacy);
        printf(" %d", !dlsym(driver, "cuNothing"));
        printf(" %d\n", strstr(dlerror(), "undefined symbol: cuNothing") != NULL);
    }
    return 0;
}
