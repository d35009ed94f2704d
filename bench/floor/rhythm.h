/* The clock and the rhythm that all floors share: `<program> ITERATIONS PAUSE_MS ...` prints one line of nanoseconds for
 * each iteration. A pause of 0 is back to back. */
#ifndef RHYTHM_H
#define RHYTHM_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <errno.h>
#include <time.h>

/* The first iterations pay for page faults of this program and for cold caches. They are run and not told. */
#define WARM_UP 3

struct rhythm {
	long iterations;
	long pause_ms;
};

static inline void fail(const char *step)
{
	fprintf(stderr, "%s: %s\n", step, strerror(errno));
	exit(1);
}

static inline struct rhythm rhythm_of(int argc, char **argv, int least, const char *usage)
{
	if (argc < least) {
		fprintf(stderr, "usage: %s ITERATIONS PAUSE_MS %s\n", argv[0], usage);
		exit(2);
	}
	return (struct rhythm){ atol(argv[1]), atol(argv[2]) };
}

static inline int64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* Runs `once`, which answers with the nanoseconds of its measured part. */
static inline void beat(struct rhythm rhythm, int64_t (*once)(void *), void *with)
{
	struct timespec pause = { rhythm.pause_ms / 1000, rhythm.pause_ms % 1000 * 1000000L };
	for (long i = 0; i < WARM_UP; i++)
		once(with);
	for (long i = 0; i < rhythm.iterations; i++) {
		if (rhythm.pause_ms)
			nanosleep(&pause, NULL);
		printf("%lld\n", (long long)once(with));
	}
}

#endif
