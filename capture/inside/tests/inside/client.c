/* A program that uses CUDA, in the ways that a library inside it must survive. What it does is its first argument.
 *
 * The driver is loaded at run time, as all programs do. Each launch's end is waited for at the end. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

typedef uint64_t handle;

static int (*cuInit)(unsigned);
static int (*cuDevicePrimaryCtxRetain)(handle *, int);
static int (*cuCtxSetCurrent)(handle);
static int (*cuCtxSynchronize)(void);
static int (*cuModuleLoadData)(handle *, const void *);
static int (*cuModuleGetFunction)(handle *, handle, const char *);
static int (*cuMemAlloc)(handle *, size_t);
static int (*cuMemcpyHtoD)(handle, const void *, size_t);
static int (*cuMemsetD8)(handle, unsigned char, size_t);
static int (*cuLaunchKernel)(handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle,
                             void **, void **);

static const char image[] = ".version 7.0\n.target sm_70\n.address_size 64\n"
                            ".visible .entry _Z11vector_scalePffi()\n{\n    ret;\n}\n";

static handle context, function;

static void check(int result, const char *what)
{
    if (result) {
        fprintf(stderr, "client: %s returned %d\n", what, result);
        _exit(3);
    }
}

static void load(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) {
        fprintf(stderr, "client: %s\n", dlerror());
        _exit(3);
    }
    *(void **)&cuInit = dlsym(driver, "cuInit");
    *(void **)&cuDevicePrimaryCtxRetain = dlsym(driver, "cuDevicePrimaryCtxRetain");
    *(void **)&cuCtxSetCurrent = dlsym(driver, "cuCtxSetCurrent");
    *(void **)&cuCtxSynchronize = dlsym(driver, "cuCtxSynchronize");
    *(void **)&cuModuleLoadData = dlsym(driver, "cuModuleLoadData");
    *(void **)&cuModuleGetFunction = dlsym(driver, "cuModuleGetFunction");
    *(void **)&cuMemAlloc = dlsym(driver, "cuMemAlloc_v2");
    *(void **)&cuMemcpyHtoD = dlsym(driver, "cuMemcpyHtoD_v2");
    *(void **)&cuMemsetD8 = dlsym(driver, "cuMemsetD8_v2");
    *(void **)&cuLaunchKernel = dlsym(driver, "cuLaunchKernel");
}

static void begin(void)
{
    handle module;
    load();
    check(cuInit(0), "cuInit");
    check(cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
    check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    check(cuModuleLoadData(&module, image), "cuModuleLoadData");
    check(cuModuleGetFunction(&function, module, "_Z11vector_scalePffi"), "cuModuleGetFunction");
}

static int launch(void)
{
    return cuLaunchKernel(function, 2, 3, 4, 32, 2, 1, 16, 0, NULL, NULL);
}

static void launches(long count)
{
    while (count--)
        check(launch(), "cuLaunchKernel");
}

static void *thread(void *count)
{
    check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    launches((long)count);
    return NULL;
}

static volatile sig_atomic_t keeper_signals;

static void who(int signal)
{
    char name[16] = "";
    (void)signal;
    pthread_getname_np(pthread_self(), name, sizeof name);
    if (!strcmp(name, "ktape"))
        keeper_signals++;
}

/* What another client of CUPTI's does with its buffers. */
static int (*next_record)(unsigned char *, size_t, void **);
static long kernels;

static void buffer_requested(unsigned char **buffer, size_t *bytes, size_t *records)
{
    *buffer = calloc(1, *bytes = 1 << 16);
    *records = 0;
}

static void buffer_completed(void *context, unsigned stream, unsigned char *buffer, size_t bytes, size_t valid)
{
    void *record = NULL;
    (void)context, (void)stream, (void)bytes;
    while (!next_record(buffer, valid, &record))
        kernels += *(unsigned *)record == 10;
}

int main(int arguments, char **argument)
{
    const char *what = argument[1];
    long count = arguments > 2 ? atol(argument[2]) : 1000;

    if (!strcmp(what, "launches")) {
        begin();
        launches(count);
        check(cuCtxSynchronize(), "cuCtxSynchronize");
    } else if (!strcmp(what, "copies")) {
        handle memory;
        static char from[4096];
        begin();
        check(cuMemAlloc(&memory, sizeof from), "cuMemAlloc");
        while (count--) {
            check(cuMemcpyHtoD(memory, from, sizeof from - count % 7), "cuMemcpyHtoD");
            check(cuMemsetD8(memory, 5, 100 + count), "cuMemsetD8");
        }
        check(cuCtxSynchronize(), "cuCtxSynchronize");
    } else if (!strcmp(what, "threads")) {
        static pthread_t threads[1000];
        long each = arguments > 3 ? atol(argument[3]) : 100;
        begin();
        for (long i = 0; i < count; i++)
            pthread_create(&threads[i], NULL, thread, (void *)each);
        for (long i = 0; i < count; i++)
            pthread_join(threads[i], NULL);
        check(cuCtxSynchronize(), "cuCtxSynchronize");
    } else if (!strcmp(what, "for")) { /* so many milliseconds */
        struct timeval start, now;
        long done = 0;
        begin();
        gettimeofday(&start, NULL);
        do {
            launches(100);
            done += 100;
            check(cuCtxSynchronize(), "cuCtxSynchronize");
            gettimeofday(&now, NULL);
        } while ((now.tv_sec - start.tv_sec) * 1000 + (now.tv_usec - start.tv_usec) / 1000 < count);
        printf("%ld\n", done);
    } else if (!strcmp(what, "wait")) { /* launches, then so many milliseconds of nothing */
        begin();
        launches(100);
        check(cuCtxSynchronize(), "cuCtxSynchronize");
        usleep(count * 1000);
    } else if (!strcmp(what, "_exit")) {
        begin();
        launches(count);
        check(cuCtxSynchronize(), "cuCtxSynchronize");
        _exit(7);
    } else if (!strcmp(what, "fork")) {
        /* Children of several threads that launch all the time. */
        static pthread_t threads[8];
        begin();
        for (int i = 0; i < 8; i++)
            pthread_create(&threads[i], NULL, thread, (void *)count);
        for (int i = 0; i < 50; i++) {
            int status;
            pid_t child = fork();
            if (!child) {
                handle other;
                /* CUDA does not work here. Whatever it answers, it must answer. */
                cuInit(0);
                cuMemAlloc(&other, 16);
                for (int j = 0; j < 100; j++)
                    launch();
                exit(5);
            }
            if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 5) {
                fprintf(stderr, "client: a child ended with %x\n", status);
                return 4;
            }
        }
        for (int i = 0; i < 8; i++)
            pthread_join(threads[i], NULL);
        check(cuCtxSynchronize(), "cuCtxSynchronize");
    } else if (!strcmp(what, "exec")) {
        begin();
        launches(count);
        check(cuCtxSynchronize(), "cuCtxSynchronize");
        usleep(200000);
        execl("/proc/self/exe", argument[0], "launches", argument[2], (char *)NULL);
    } else if (!strcmp(what, "environment")) {
        begin();
        fflush(stdout);
        return system("env");
    } else if (!strcmp(what, "child")) { /* the program again, with the variables of before */
        char injection[4096], directory[4096];
        snprintf(injection, sizeof injection, "%s", getenv("CUDA_INJECTION64_PATH"));
        snprintf(directory, sizeof directory, "%s", getenv("KTAPE_INSIDE"));
        begin();
        launches(count);
        check(cuCtxSynchronize(), "cuCtxSynchronize");
        if (!fork()) {
            setenv("CUDA_INJECTION64_PATH", injection, 1);
            setenv("KTAPE_INSIDE", directory, 1);
            execl("/proc/self/exe", argument[0], "launches", argument[2], (char *)NULL);
        }
        wait(NULL);
    } else if (!strcmp(what, "whose")) { /* no thread but the program's own runs its handlers */
        begin();
        signal(SIGUSR1, who);
        sigset_t set;
        sigemptyset(&set);
        sigaddset(&set, SIGUSR1);
        pthread_sigmask(SIG_BLOCK, &set, NULL);
        for (int i = 0; i < 100; i++) {
            kill(getpid(), SIGUSR1);
            usleep(1000);
        }
        printf("%d\n", (int)keeper_signals);
    } else if (!strcmp(what, "dlclose")) {
        begin();
        launches(count);
        void *library = dlopen(getenv("LIBRARY"), RTLD_NOW | RTLD_NOLOAD);
        while (library && !dlclose(library) && dlopen(getenv("LIBRARY"), RTLD_NOW | RTLD_NOLOAD))
            if (!--count)
                break;
        launches(100);
        check(cuCtxSynchronize(), "cuCtxSynchronize");
    } else if (!strcmp(what, "profiler")) { /* that the program itself starts */
        void *cupti, *subscriber;
        begin();
        cupti = dlopen("libcupti.so.12", RTLD_NOW);
        int (*subscribe)(void **, void *, void *) = NULL;
        *(void **)&subscribe = dlsym(cupti, "cuptiSubscribe");
        printf("%d\n", subscribe(&subscriber, (void *)usleep, NULL));
        launches(count);
        check(cuCtxSynchronize(), "cuCtxSynchronize");
    } else if (!strcmp(what, "later")) { /* another client of CUPTI's that comes later, and what it gets in so many milliseconds */
        struct timeval start, now;
        void *cupti, *subscriber;
        long done = 0;
        begin();
        launches(100);
        check(cuCtxSynchronize(), "cuCtxSynchronize");
        cupti = dlopen("libcupti.so.12", RTLD_NOW);
        int (*subscribe)(void **, void *, void *), (*enable)(unsigned), (*flush)(unsigned), (*registers)(void *, void *);
        *(void **)&subscribe = dlsym(cupti, "cuptiSubscribe");
        *(void **)&registers = dlsym(cupti, "cuptiActivityRegisterCallbacks");
        *(void **)&enable = dlsym(cupti, "cuptiActivityEnable");
        *(void **)&flush = dlsym(cupti, "cuptiActivityFlushAll");
        *(void **)&next_record = dlsym(cupti, "cuptiActivityGetNextRecord");
        check(subscribe(&subscriber, (void *)usleep, NULL), "cuptiSubscribe");
        check(flush(0), "cuptiActivityFlushAll");
        check(registers((void *)buffer_requested, (void *)buffer_completed), "cuptiActivityRegisterCallbacks");
        check(enable(10), "cuptiActivityEnable");
        gettimeofday(&start, NULL);
        do {
            launches(10);
            done += 10;
            check(cuCtxSynchronize(), "cuCtxSynchronize");
            usleep(1000);
            gettimeofday(&now, NULL);
        } while ((now.tv_sec - start.tv_sec) * 1000 + (now.tv_usec - start.tv_usec) / 1000 < count);
        check(flush(0), "cuptiActivityFlushAll");
        printf("%ld %ld\n", done, kernels);
    } else if (!strcmp(what, "closed")) { /* descriptors that are closed and reused, as daemons do it */
        begin();
        launches(1);
        for (int file = 3; file < 100; file++)
            close(file);
        for (int i = 0; i < 20; i++)
            if (!fopen("/dev/null", "r"))
                return 4;
        launches(count);
        check(cuCtxSynchronize(), "cuCtxSynchronize");
        usleep(100000);
    }
    return 0;
}
