/* What a tracepoint of LTTng-UST costs that keeps as much as a launch's record: see launch.sh. Built twice over from this one file, as
 * the header of a tracepoint includes itself. */
#ifdef IS_HEADER

#undef LTTNG_UST_TRACEPOINT_PROVIDER
#define LTTNG_UST_TRACEPOINT_PROVIDER ktape
#undef LTTNG_UST_TRACEPOINT_INCLUDE
#define LTTNG_UST_TRACEPOINT_INCLUDE "launch.h"
#if !defined(LAUNCH_H) || defined(LTTNG_UST_TRACEPOINT_HEADER_MULTI_READ)
#define LAUNCH_H
#include <lttng/tracepoint.h>
/* 16 words: what a call's record has. */
LTTNG_UST_TRACEPOINT_EVENT(ktape, launch, LTTNG_UST_TP_ARGS(const unsigned long *, words),
                           LTTNG_UST_TP_FIELDS(lttng_ust_field_array(unsigned long, words, words, 16)))
#endif
#include <lttng/tracepoint-event.h>

#else

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#define LTTNG_UST_TRACEPOINT_DEFINE
#define LTTNG_UST_TRACEPOINT_CREATE_PROBES
#include "launch.h"

static int ascending(const void *a, const void *b)
{
    return (*(double *)a > *(double *)b) - (*(double *)a < *(double *)b);
}

int main(void)
{
    enum { BATCHES = 2000, BATCH = 1000 };
    static double times[BATCHES];
    unsigned long words[16] = {0};
    if (!lttng_ust_tracepoint_enabled(ktape, launch)) {
        fprintf(stderr, "no session takes the tracepoint\n");
        return 1;
    }
    for (int batch = -1; batch < BATCHES; batch++) {
        struct timespec begun, ended;
        clock_gettime(CLOCK_MONOTONIC, &begun);
        for (int call = 0; call < BATCH; call++) {
            words[0] = call;
            lttng_ust_tracepoint(ktape, launch, words);
        }
        clock_gettime(CLOCK_MONOTONIC, &ended);
        if (batch >= 0)
            times[batch] = ((ended.tv_sec - begun.tv_sec) * 1e9 + (ended.tv_nsec - begun.tv_nsec)) / BATCH;
    }
    qsort(times, BATCHES, sizeof *times, ascending);
    printf("  %-46s %8.1f %8.1f\n", "LTTng-UST tracepoint of 128 bytes", times[0], times[BATCHES / 2]);
}

#endif
