/* Kernels that Sidecore's daemon loads: shared objects with the C ABI below.
 *
 * An object exports one function, sidecore_kernel_module, which names its kernels; the macro
 * SIDECORE_KERNEL_MODULE writes it. The daemon calls a kernel's `run` on one of its engines for
 * every request of a client. Nothing has to be linked.
 *
 * Rules. A client's memory is hostile: it may change at any time. So there are no pointers to it:
 * `run` gets what it needs into its local store, checks the copy, works there, and puts results.
 * The same request on the same inputs puts the same bytes and replies the same. Work is handed in
 * pieces of some 100 us; whoever takes longer calls sidecore_yield between pieces, and returns when
 * it says so.
 *
 * A kernel runs in a process of its own for each client and engine, on the engine's core. There it
 * has memory (malloc), clocks and its local store, no files and no threads: any other system call
 * ends the process, as a crash does. Its request then fails with the reason, and the next one gets
 * a new process with new states. SIDECORE_KERNEL_LIMITS asks for more time, memory or stack.
 *
 * C99 and C++11. The Rust side is the crate sidecore-kernel-abi. */
#ifndef SIDECORE_KERNEL_H
#define SIDECORE_KERNEL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this ABI. A daemon refuses an object of another version. */
#define SIDECORE_KERNEL_ABI 1u
/* Words of a request, and of its reply. */
#define SIDECORE_KERNEL_WORDS 6
/* Tag groups of transfers: 0 to 31. */
#define SIDECORE_KERNEL_TAGS 32

/* The daemon's functions, for kernels; use the wrappers below. */
struct sidecore_host {
    uint32_t abi;   /* the daemon's SIDECORE_KERNEL_ABI */
    uint32_t bytes; /* size of this struct in the daemon: later releases add at its end */
    int (*get)(void *call, void *to, uint32_t input, uint64_t offset, uint64_t bytes,
               uint32_t tag);
    int (*put)(void *call, uint32_t output, uint64_t offset, const void *from, uint64_t bytes,
               uint32_t tag);
    void (*wait)(void *call, uint32_t tag_mask);
    int (*yield)(void *call);
    void (*fail)(void *call, const char *text);
};

/* One request. Valid until `run` returns. */
struct sidecore_run {
    const struct sidecore_host *host;
    void *call;            /* for the daemon's functions */
    void *state;           /* made by `create` for this engine; NULL without */
    unsigned char *store;  /* local store, aligned to 128; its contents are unspecified */
    uint64_t store_bytes;  /* as many as the kernel asked for */
    const uint64_t *words; /* SIDECORE_KERNEL_WORDS words of the request */
    uint64_t *reply;       /* as many of the reply, 0 at first */
    const uint64_t *input_bytes;  /* the length of each input */
    const uint64_t *output_bytes; /* the length of each output */
    uint32_t inputs;
    uint32_t outputs;
};

/* One kernel. */
struct sidecore_kernel {
    const char *name;     /* 1 to 40 bytes of UTF-8 */
    uint32_t version;     /* changes when words, ranges or results change their meaning */
    uint32_t zero;        /* 0 */
    uint64_t store_bytes; /* local store that a run needs at most; an engine has 256 KiB */
    /* Makes the state that one engine keeps between runs, and ends it; both or neither. `create`
     * may be called on another thread than `run`; never two at a time on one state. */
    void *(*create)(void);
    void (*destroy)(void *state);
    /* 0: done. Other: failed, by the text that sidecore_fail was given. */
    int (*run)(struct sidecore_run *run);
};

/* The kernels of an object. They stay as they are until the process ends. */
struct sidecore_module {
    uint32_t abi;          /* SIDECORE_KERNEL_ABI */
    uint32_t kernel_bytes; /* sizeof(struct sidecore_kernel) */
    uint32_t count;        /* 1 to 64 */
    uint32_t zero;         /* 0 */
    const struct sidecore_kernel *kernels;
};

/* The one symbol that an object exports. */
const struct sidecore_module *sidecore_kernel_module(void);

#ifdef __GNUC__
#define SIDECORE_KERNEL_EXPORT_ __attribute__((visibility("default")))
#else
#define SIDECORE_KERNEL_EXPORT_
#endif

/* Exports the kernels of an array of struct sidecore_kernel. Once in an object. */
#define SIDECORE_KERNEL_MODULE(array)                                                     \
    SIDECORE_KERNEL_EXPORT_ const struct sidecore_module *sidecore_kernel_module(void) {  \
        static const struct sidecore_module module = {                                    \
            SIDECORE_KERNEL_ABI, (uint32_t)sizeof(array)[0],                              \
            (uint32_t)(sizeof(array) / sizeof(array)[0]), 0, array};                      \
        return &module;                                                                   \
    }

/* The limits that an object's kernels need; 0 for the daemon's default. */
struct sidecore_limits {
    uint32_t bytes;        /* sizeof(struct sidecore_limits) */
    uint32_t zero;         /* 0 */
    uint64_t time_us;      /* processor time of one request; 1 s by default */
    uint64_t memory_bytes; /* memory of the process, without the local store; 256 MiB */
    uint64_t stack_bytes;  /* 2 MiB */
};

/* An object may export it, too. */
const struct sidecore_limits *sidecore_kernel_limits(void);

/* Exports an object's limits. At most once in an object. */
#define SIDECORE_KERNEL_LIMITS(time_us, memory_bytes, stack_bytes)                        \
    SIDECORE_KERNEL_EXPORT_ const struct sidecore_limits *sidecore_kernel_limits(void) {  \
        static const struct sidecore_limits limits = {                                    \
            (uint32_t)sizeof limits, 0, time_us, memory_bytes, stack_bytes};              \
        return &limits;                                                                   \
    }

/* Gets `bytes` bytes at `offset` of an input, in tag group `tag`: they are at `to` once the group
 * was waited for. 0, or -1 where the input is not that long: nothing is got then. */
static inline int sidecore_get(const struct sidecore_run *run, void *to, uint32_t input,
                               uint64_t offset, uint64_t bytes, uint32_t tag) {
    return run->host->get(run->call, to, input, offset, bytes, tag);
}

/* Puts `bytes` bytes to `offset` of an output, in tag group `tag`: `from` may be used again once
 * the group was waited for. 0, or -1 where the output is not that long: nothing is put then. */
static inline int sidecore_put(const struct sidecore_run *run, uint32_t output, uint64_t offset,
                               const void *from, uint64_t bytes, uint32_t tag) {
    return run->host->put(run->call, output, offset, from, bytes, tag);
}

/* Waits for the transfers of all tag groups whose bit is set. */
static inline void sidecore_wait(const struct sidecore_run *run, uint32_t tag_mask) {
    run->host->wait(run->call, tag_mask);
}

/* Called between pieces of long work, about every 200 us. 0: go on. Other: nobody wants the answer
 * any more, return (anything). */
static inline int sidecore_yield(const struct sidecore_run *run) {
    return run->host->yield(run->call);
}

/* Notes why the kernel fails; the client gets the first 64 bytes. Returns -1, for `return`. */
static inline int sidecore_fail(const struct sidecore_run *run, const char *text) {
    run->host->fail(run->call, text);
    return -1;
}

#ifdef __cplusplus
}
#endif

#endif
