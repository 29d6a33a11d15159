/* Two or more ranks exchange messages of many lengths and check every byte, do collectives and
 * check the sums; then rank 0 prints medians of latency and bandwidth between ranks 0 and 1.
 *
 * Why here: a provider for libfabric is right if an MPI on it is. Must stay true: a wrong byte ends
 * the run with another status than 0. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LONGEST (4 << 20)
#define MANY 64
#define ROUNDS 2000
#define BURSTS 50

static unsigned char *out, *in;
static int rank, size;

static void check(int right, const char *what) {
    if (!right) {
        fprintf(stderr, "rank %d: %s is wrong\n", rank, what);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

static unsigned char byte(size_t at, int from, int length) {
    return (unsigned char)(at * 131 + (size_t)from * 17 + (size_t)length);
}

static void fill(int length) {
    for (size_t at = 0; at < (size_t)length; at++)
        out[at] = byte(at, rank, length);
}

static void exchange(int length) {
    int right = (rank + 1) % size, left = (rank + size - 1) % size, count;
    MPI_Status status;
    fill(length);
    memset(in, 0, (size_t)length + 1);
    MPI_Sendrecv(out, length, MPI_BYTE, right, length, in, LONGEST, MPI_BYTE, left, length,
                 MPI_COMM_WORLD, &status);
    MPI_Get_count(&status, MPI_BYTE, &count);
    check(count == length, "a length");
    for (size_t at = 0; at < (size_t)length; at++)
        check(in[at] == byte(at, left, length), "a byte");
}

/* More messages at once than a receiver has posted buffers for, taken in the other order. */
static void flood(void) {
    MPI_Request requests[2 * MANY];
    int right = (rank + 1) % size, left = (rank + size - 1) % size;
    static int sent[MANY], came[MANY];
    for (int burst = 0; burst < BURSTS; burst++) {
        for (int at = 0; at < MANY; at++) {
            sent[at] = rank * 1000 + at + burst;
            MPI_Isend(&sent[at], 1, MPI_INT, right, at, MPI_COMM_WORLD, &requests[at]);
        }
        for (int at = MANY - 1; at >= 0; at--)
            MPI_Irecv(&came[at], 1, MPI_INT, left, at, MPI_COMM_WORLD, &requests[MANY + at]);
        MPI_Waitall(2 * MANY, requests, MPI_STATUSES_IGNORE);
        for (int at = 0; at < MANY; at++)
            check(came[at] == left * 1000 + at + burst, "a message of many");
    }
}

static void collectives(void) {
    enum { WORDS = 10000 };
    static double from[WORDS], sum[WORDS];
    for (int at = 0; at < WORDS; at++)
        from[at] = at + rank;
    MPI_Allreduce(from, sum, WORDS, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    for (int at = 0; at < WORDS; at++)
        check(sum[at] == (double)at * size + size * (size - 1) / 2.0, "a sum");
    if (rank == 0)
        memcpy(sum, from, sizeof sum);
    MPI_Bcast(sum, WORDS, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    check(sum[77] == 77.0, "a broadcast");
    int *all = malloc(2 * (size_t)size * sizeof(int));
    for (int at = 0; at < size; at++)
        all[at] = rank * 100 + at;
    MPI_Alltoall(all, 1, MPI_INT, all + size, 1, MPI_INT, MPI_COMM_WORLD);
    for (int at = 0; at < size; at++)
        check(all[size + at] == at * 100 + rank, "an exchange of all with all");
    MPI_Allgather(&rank, 1, MPI_INT, all, 1, MPI_INT, MPI_COMM_WORLD);
    for (int at = 0; at < size; at++)
        check(all[at] == at, "a gathering");
    free(all);
    MPI_Barrier(MPI_COMM_WORLD);
}

static int by_value(const void *one, const void *other) {
    double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

/* Median of half a round trip, in microseconds. */
static double latency(int length, int rounds) {
    static double times[ROUNDS];
    for (int round = -rounds / 10; round < rounds; round++) {
        double begun = MPI_Wtime();
        if (rank == 0) {
            MPI_Send(out, length, MPI_BYTE, 1, 1, MPI_COMM_WORLD);
            MPI_Recv(in, length, MPI_BYTE, 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        } else if (rank == 1) {
            MPI_Recv(in, length, MPI_BYTE, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            MPI_Send(out, length, MPI_BYTE, 0, 1, MPI_COMM_WORLD);
        }
        if (round >= 0)
            times[round] = (MPI_Wtime() - begun) * 1e6 / 2;
    }
    qsort(times, (size_t)rounds, sizeof *times, by_value);
    return times[rounds / 2];
}

int main(int count, char **arguments) {
    const char *label = count > 1 ? arguments[1] : "mpi";
    MPI_Init(&count, &arguments);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    out = malloc(LONGEST + 1);
    in = malloc(LONGEST + 1);
    check(out && in, "memory");
    for (int length = 0; length <= LONGEST; length = length < 4 ? length + 1 : length * 3 / 2)
        exchange(length);
    exchange(LONGEST);
    flood();
    collectives();
    memset(out, 1, LONGEST);
    double small = latency(64, ROUNDS), middle = latency(64 << 10, ROUNDS / 4);
    double large = latency(1 << 20, 100);
    if (rank == 0)
        printf("%s: right; half a round trip of 64 B %.2f us, 64 KiB %.1f us, 1 MiB %.0f us"
               " (%.0f MB/s)\n",
               label, small, middle, large, (1 << 20) / large);
    MPI_Finalize();
    return 0;
}
