/* A client of the sidecore daemon, for C and C++: this header is all of it.
 *
 *     struct sidecore *sc;
 *     if (sidecore_attach(&sc, "/run/sidecore/daemon.sock", 1 << 20) == 0) {
 *         int sum = sidecore_kernel(sc, "sum_f64");
 *         struct sidecore_buffer in = sidecore_alloc(sc, 1000 * sizeof(double));
 *         ... write doubles to in.data ...
 *         struct sidecore_request rq = {0};
 *         rq.inputs[rq.input_count++] = &in;
 *         if (sidecore_call(sc, sum, &rq) == SIDECORE_DONE)
 *             ... rq.reply[0] holds the bits of the sum ...
 *         else
 *             ... the daemon is gone: add them up yourself ...
 *         sidecore_free(&in);
 *         sidecore_detach(sc);
 *     }
 *
 * Whom it talks to: a daemon of this process's own user or of root, whatever the path; any other is
 * refused before a byte is sent (SIDECORE_UNTRUSTED). A path of NULL looks for the daemon where one
 * is by default: the own user's ($XDG_RUNTIME_DIR/sidecore/daemon.sock, else
 * /tmp/sidecore-UID/daemon.sock), then the system's (/run/sidecore/daemon.sock).
 *
 * What a call needs from the caller: SIDECORE_LOST means that the daemon ended, was killed or was
 * stopped before it answered (noticed within 100 ms). Then do the work yourself, on the same
 * buffers. The outputs of that call have moved to memory that the daemon does not know, with all
 * they held; so look at `buffer.data` anew after every call, and keep no copy of it. The client is
 * lost for good then; attach again with a new one whenever you like. Outputs that moved outlive it.
 * SIDECORE_NO_MEMORY means the same, but there was no memory to move the outputs to: the daemon may
 * still write to them. Free some memory and call sidecore_rescue, or do not look at them.
 *
 * Threads: any number, as long as no two use the same engine at the same time (sidecore_call uses
 * the client's own engine; sidecore_call_on names one). Allocation is not thread-safe. A child
 * process must not use its parent's client.
 *
 * Link with nothing. Needs Linux and GCC or Clang, C99 or C++11 or later; may be included in any
 * order. The protocol is docs/daemon.md, version 2.
 */
#ifndef SIDECORE_H
#define SIDECORE_H

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SIDECORE_WORDS 6
#define SIDECORE_RANGES 4
#define SIDECORE_KERNELS_MAX 64
/* Milliseconds without a heartbeat after which a daemon is given up. Define another number before
 * including this where the machine is busy and the daemon may not ask for its heart to run first. */
#ifndef SIDECORE_SILENCE_MS
#define SIDECORE_SILENCE_MS 85
#endif

/* How a call ended. */
enum {
    SIDECORE_DONE = 0,    /* on an engine; the reply counts */
    SIDECORE_LOST = 1,    /* the daemon is gone; do it yourself */
    SIDECORE_FAILED = 2,  /* the kernel gave an error; `text` says which */
    SIDECORE_INVALID = 3, /* the request makes no sense (a buffer of another client, too many) */
    SIDECORE_NO_MEMORY = 4 /* lost, and no memory for the outputs: see sidecore_rescue */
};

/* What sidecore_attach returns where the daemon is of another user; nothing was sent to it. */
#define SIDECORE_UNTRUSTED EKEYREJECTED

/* Stretches of an arena; nobody's business. */
struct sidecore_arena_;

/* Memory that calls read and write. */
struct sidecore_buffer {
    void *data;    /* the bytes; may change in a call whose output it is */
    size_t bytes;  /* how many */
    int own;       /* not in an arena any more, but from malloc */
    /* nobody's business from here on: */
    uint64_t offset, taken; /* where it lies in its arena, and how much of that it takes */
    struct sidecore_arena_ *home;
};

/* A call: what is asked, and after it what was answered. */
struct sidecore_request {
    uint64_t words[SIDECORE_WORDS];
    struct sidecore_buffer *inputs[SIDECORE_RANGES];
    struct sidecore_buffer *outputs[SIDECORE_RANGES];
    int input_count;  /* inputs and outputs together: at most SIDECORE_RANGES */
    int output_count;
    uint64_t reply[SIDECORE_WORDS];
    char text[65];
};

/* An attachment. Its fields are nobody's business. */
struct sidecore {
    int socket;
    int lost;
    uint32_t client, engines, kernels;
    unsigned char *segment, *arena;
    const unsigned char *activity;
    uint64_t segment_bytes, arena_bytes, activity_bytes;
    struct sidecore_arena_ *stretches;
    uint32_t sequences[64];
    uint32_t patience[64]; /* turns of an empty loop before the first look at an answer */
    struct {
        char name[41];
        uint32_t number;
    } table[SIDECORE_KERNELS_MAX];
};

/* ---- what follows is how it is done --------------------------------------------------------- */

#define SIDECORE_MAGIC UINT64_C(0x31524f4345444953) /* "SIDECOR1" */
#define SIDECORE_VERSION 3u
#define SIDECORE_PAGE 4096u
#define SIDECORE_LINES 384u /* request and answer 256, sleepers 128 */

/* Strict standards hide these in headers that may have been included before this one. */
#ifdef POLLRDHUP
#define SIDECORE_POLLRDHUP_ POLLRDHUP
#else
#define SIDECORE_POLLRDHUP_ 0x2000
#endif
#ifdef SO_PEERCRED
#define SIDECORE_PEERCRED_ SO_PEERCRED
#elif defined(__x86_64__) || defined(__i386__) || defined(__aarch64__) || defined(__arm__) \
    || defined(__riscv)
#define SIDECORE_PEERCRED_ 17
#else
#error "define _GNU_SOURCE before the first header on this machine"
#endif
#ifdef __GLIBC__
#ifdef __USE_MISC
#define SIDECORE_HAS_SYSCALL_
#endif
#elif defined(_GNU_SOURCE) || defined(_BSD_SOURCE)
#define SIDECORE_HAS_SYSCALL_
#endif
#if !defined(SIDECORE_HAS_SYSCALL_) && !defined(__cplusplus)
extern long syscall(long number, ...);
#endif

/* As the kernel has it. */
struct sidecore_time_ {
    long s, ns;
};

static inline uint64_t sidecore_now_ns_(void) {
#ifdef CLOCK_MONOTONIC
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
#else
    struct sidecore_time_ t = {0, 0};
    syscall(SYS_clock_gettime, 1 /* CLOCK_MONOTONIC */, &t);
    return (uint64_t)t.s * 1000000000u + (uint64_t)t.ns;
#endif
}

static inline uint32_t *sidecore_u32_(unsigned char *at) { return (uint32_t *)(void *)at; }
static inline uint64_t *sidecore_u64_(unsigned char *at) { return (uint64_t *)(void *)at; }

static inline uint64_t sidecore_activity_(const struct sidecore *sc, size_t offset) {
    const uint64_t *word = (const uint64_t *)(const void *)(sc->activity + offset);
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

/* Maps what the daemon handed over, after a look at its size and seals; closes the descriptor. */
static inline void *sidecore_map_(int file, uint64_t bytes, int protection) {
    struct stat found;
    void *memory = MAP_FAILED;
    int sealed = fcntl(file, 1034 /* F_GET_SEALS */);
    if (sealed >= 0 && (sealed & 6) == 6 /* F_SEAL_SHRINK | F_SEAL_GROW */
        && fstat(file, &found) == 0 && (uint64_t)found.st_size == bytes && bytes != 0)
        memory = mmap(NULL, (size_t)bytes, protection, MAP_SHARED, file, 0);
    close(file);
    return memory == MAP_FAILED ? NULL : memory;
}

/* Sends the question and takes the answer and its two descriptors. 0 or an errno. */
static inline int sidecore_ask_(int sock, uint64_t arena_bytes, unsigned char *answer,
                                size_t room, size_t *length, int files[2]) {
    unsigned char question[32] = {0};
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(4 * sizeof(int))];
    } control;
    const uint64_t magic = SIDECORE_MAGIC;
    const uint32_t kind = 1, version = SIDECORE_VERSION;
    struct iovec part;
    struct msghdr message;
    struct cmsghdr *header;
    struct pollfd polled;
    ssize_t got;
    memcpy(question, &magic, 8);
    memcpy(question + 8, &kind, 4);
    memcpy(question + 12, &version, 4);
    memcpy(question + 16, &arena_bytes, 8);
    /* Who refuses us may have hung up by now, and left its reason for us to read. */
    if (send(sock, question, sizeof question, MSG_NOSIGNAL) < 0 && errno != EPIPE
        && errno != ECONNRESET)
        return errno;
    polled.fd = sock;
    polled.events = POLLIN;
    if (poll(&polled, 1, 2000) != 1)
        return ETIMEDOUT;
    memset(&message, 0, sizeof message);
    memset(&control, 0, sizeof control);
    part.iov_base = answer;
    part.iov_len = room;
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.bytes;
    message.msg_controllen = sizeof control.bytes;
    got = recvmsg(sock, &message, MSG_CMSG_CLOEXEC);
    if (got < 0 && errno == ECONNRESET) /* said once, before what still waits */
        got = recvmsg(sock, &message, MSG_CMSG_CLOEXEC);
    if (got < 0)
        return errno;
    *length = (size_t)got;
    header = CMSG_FIRSTHDR(&message);
    if (header && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS
        && header->cmsg_len == CMSG_LEN(2 * sizeof(int)))
        memcpy(files, CMSG_DATA(header), 2 * sizeof(int));
    return 0;
}

/* ---- the arena ------------------------------------------------------------------------------ */

/* Free stretches, ascending, never adjacent. There are never more of them than buffers plus one, so
 * that room for one more is made when a buffer is made, and freeing cannot fail. */
struct sidecore_stretch_ {
    uint64_t offset, bytes;
};
struct sidecore_arena_ {
    struct sidecore_stretch_ *stretches;
    size_t count, room;
    size_t buffers; /* that were handed out and not freed */
    int ended;      /* its client is gone */
};

static inline void sidecore_arena_drop_(struct sidecore_arena_ *arena) {
    if (!arena || !arena->ended || arena->buffers)
        return;
    free(arena->stretches);
    free(arena);
}

static inline struct sidecore_arena_ *sidecore_arena_make_(uint64_t bytes) {
    struct sidecore_arena_ *arena = (struct sidecore_arena_ *)calloc(1, sizeof *arena);
    if (!arena)
        return NULL;
    arena->room = 16;
    arena->stretches =
        (struct sidecore_stretch_ *)calloc(arena->room, sizeof *arena->stretches);
    if (!arena->stretches) {
        free(arena);
        return NULL;
    }
    arena->stretches[0].bytes = bytes;
    arena->count = bytes != 0;
    return arena;
}

/* Takes the first stretch that fits; its offset, or UINT64_MAX. */
static inline uint64_t sidecore_arena_take_(struct sidecore_arena_ *arena, uint64_t bytes) {
    size_t at;
    if (arena->buffers + 2 > arena->room) {
        size_t room = 2 * arena->room;
        void *more = realloc(arena->stretches, room * sizeof *arena->stretches);
        if (!more)
            return UINT64_MAX;
        arena->stretches = (struct sidecore_stretch_ *)more;
        arena->room = room;
    }
    for (at = 0; at < arena->count; at++) {
        struct sidecore_stretch_ *stretch = &arena->stretches[at];
        uint64_t offset = stretch->offset;
        if (stretch->bytes < bytes)
            continue;
        stretch->offset += bytes;
        stretch->bytes -= bytes;
        if (stretch->bytes == 0) {
            arena->count--;
            memmove(stretch, stretch + 1, (arena->count - at) * sizeof *stretch);
        }
        arena->buffers++;
        return offset;
    }
    return UINT64_MAX;
}

/* Gives a stretch back. One that is free already (a copy of a buffer was freed) is left alone. */
static inline void sidecore_arena_give_(struct sidecore_arena_ *arena, uint64_t offset,
                                        uint64_t bytes) {
    size_t at = 0;
    struct sidecore_stretch_ *list = arena->stretches;
    while (at < arena->count && list[at].offset < offset)
        at++;
    if ((at < arena->count && list[at].offset < offset + bytes)
        || (at > 0 && list[at - 1].offset + list[at - 1].bytes > offset))
        return;
    arena->buffers--;
    if (at > 0 && list[at - 1].offset + list[at - 1].bytes == offset) {
        list[--at].bytes += bytes;
    } else {
        memmove(list + at + 1, list + at, (arena->count - at) * sizeof *list);
        arena->count++;
        list[at].offset = offset;
        list[at].bytes = bytes;
    }
    if (at + 1 < arena->count && list[at].offset + list[at].bytes == list[at + 1].offset) {
        list[at].bytes += list[at + 1].bytes;
        arena->count--;
        memmove(list + at + 1, list + at + 2, (arena->count - at - 1) * sizeof *list);
    }
}

/* ---- attaching ------------------------------------------------------------------------------ */

/* Gives everything back. Buffers that are in the arena end with it; free them before or after. */
static inline void sidecore_detach(struct sidecore *sc) {
    if (!sc)
        return;
    if (sc->socket >= 0)
        close(sc->socket);
    if (sc->segment)
        munmap(sc->segment, (size_t)sc->segment_bytes);
    if (sc->activity)
        munmap((void *)(uintptr_t)sc->activity, (size_t)sc->activity_bytes);
    if (sc->stretches) {
        sc->stretches->ended = 1;
        sidecore_arena_drop_(sc->stretches);
    }
    free(sc);
}

/* One line that says what an error of sidecore_attach means. */
static inline const char *sidecore_attach_text(int error) {
    switch (error) {
    case 0:
        return "attached";
    case SIDECORE_UNTRUSTED:
        return "the daemon there belongs to a user who is neither this one nor root; nothing was "
               "sent to it";
    case ENOENT:
    case ECONNREFUSED:
        return "no daemon serves there; start one with `sidecore daemon`";
    case EACCES:
        return "this user may not connect to the daemon's socket";
    case EPERM:
        return "the daemon refuses; `sidecore offload call empty` says why";
    case EPROTO:
        return "the daemon is of another version; use the same release for both";
    case ETIMEDOUT:
        return "the daemon does not answer; is it stopped?";
    default:
        return strerror(error);
    }
}

/* Connects to the daemon at `path`, and looks whose it is. A socket, or a negative errno. */
static inline int sidecore_connect_(const char *path, int64_t trusted_uid) {
    struct { /* struct ucred, which strict standards hide */
        int pid;
        unsigned uid, gid;
    } peer = {0, 0, 0};
    socklen_t length = sizeof peer;
    struct timeval patience = {2, 0};
    struct sockaddr_un address;
    int error, sock;
    if (strlen(path) >= sizeof address.sun_path)
        return -ENAMETOOLONG;
    memset(&address, 0, sizeof address);
    address.sun_family = AF_UNIX;
    memcpy(address.sun_path, path, strlen(path));
    sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (sock < 0)
        return -errno;
    /* For as long as connect may wait where the daemon is behind. */
    setsockopt(sock, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    if (connect(sock, (const struct sockaddr *)&address, sizeof address) != 0)
        error = errno == EAGAIN ? ETIMEDOUT : errno;
    else if (getsockopt(sock, SOL_SOCKET, SIDECORE_PEERCRED_, &peer, &length) != 0)
        error = errno;
    else if (peer.uid != 0 && peer.uid != (unsigned)geteuid()
             && (int64_t)peer.uid != trusted_uid)
        error = SIDECORE_UNTRUSTED;
    else
        return sock;
    close(sock);
    return -error;
}

/* The same where daemons are by default: the own user's first, then the system's. */
static inline int sidecore_connect_default_(int64_t trusted_uid) {
    char path[sizeof(((struct sockaddr_un *)0)->sun_path)];
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    const char *system_path = "/run/sidecore/daemon.sock";
    unsigned uid = (unsigned)geteuid();
    int sock, system_sock, length;
    if (uid == 0)
        return sidecore_connect_(system_path, trusted_uid);
    if (runtime && *runtime)
        length = snprintf(path, sizeof path, "%s/sidecore/daemon.sock", runtime);
    else
        length = snprintf(path, sizeof path, "/tmp/sidecore-%u/daemon.sock", uid);
    sock = length < (int)sizeof path ? sidecore_connect_(path, trusted_uid) : -ENAMETOOLONG;
    if (sock >= 0)
        return sock;
    system_sock = sidecore_connect_(system_path, trusted_uid);
    return system_sock >= 0 ? system_sock : sock;
}

/* As sidecore_attach, and trusts a daemon of `trusted_uid`, too; -1: of nobody else. */
static inline int sidecore_attach_trusting(struct sidecore **out, const char *path,
                                           uint64_t arena_bytes, int64_t trusted_uid) {
    unsigned char answer[64 + 80 * SIDECORE_KERNELS_MAX];
    struct sidecore *sc;
    size_t length = 0;
    int files[2] = {-1, -1}, error;
    uint64_t magic = 0;
    uint32_t kind = 0, version = 0, index;
    *out = NULL;
    sc = (struct sidecore *)calloc(1, sizeof *sc);
    if (!sc)
        return ENOMEM;
    sc->socket = path ? sidecore_connect_(path, trusted_uid)
                      : sidecore_connect_default_(trusted_uid);
    if (sc->socket < 0) {
        error = -sc->socket;
        sidecore_detach(sc);
        return error;
    }
    error = sidecore_ask_(sc->socket, arena_bytes, answer, sizeof answer, &length, files);
    if (!error && length >= 16) {
        memcpy(&magic, answer, 8);
        memcpy(&kind, answer + 8, 4);
        memcpy(&version, answer + 12, 4);
    }
    if (!error && (magic != SIDECORE_MAGIC || version != SIDECORE_VERSION))
        error = EPROTO;
    if (!error && (kind != 1 || length < 64 || files[1] < 0))
        error = kind == 255 ? EPERM : EPROTO;
    if (error) {
        if (files[0] >= 0)
            close(files[0]);
        if (files[1] >= 0)
            close(files[1]);
        sidecore_detach(sc);
        return error;
    }
    memcpy(&sc->client, answer + 16, 4);
    memcpy(&sc->engines, answer + 20, 4);
    memcpy(&sc->segment_bytes, answer + 24, 8);
    memcpy(&sc->arena_bytes, answer + 32, 8);
    memcpy(&sc->activity_bytes, answer + 40, 8);
    memcpy(&sc->kernels, answer + 48, 4);
    sc->segment =
        (unsigned char *)sidecore_map_(files[0], sc->segment_bytes, PROT_READ | PROT_WRITE);
    sc->activity = (const unsigned char *)sidecore_map_(files[1], sc->activity_bytes, PROT_READ);
    if (sc->kernels > SIDECORE_KERNELS_MAX || length != 64 + 80 * (size_t)sc->kernels
        || sc->engines == 0 || sc->engines > 62 || !sc->segment || !sc->activity) {
        sidecore_detach(sc);
        return EPROTO;
    }
    for (index = 0; index < sc->kernels; index++) {
        memcpy(sc->table[index].name, answer + 64 + 48 * index, 40);
        memcpy(&sc->table[index].number, answer + 64 + 48 * index + 40, 4);
    }
    sc->stretches = sidecore_arena_make_(sc->arena_bytes);
    if (!sc->stretches) {
        sidecore_detach(sc);
        return ENOMEM;
    }
    sc->arena = sc->segment
        + (SIDECORE_PAGE + sc->engines * SIDECORE_LINES + SIDECORE_PAGE - 1) / SIDECORE_PAGE
            * SIDECORE_PAGE;
    *out = sc;
    return 0;
}

/* Attaches to the daemon at `path` (NULL: where one is by default), with an arena of so many bytes.
 * 0, or an errno, which sidecore_attach_text puts into words: ENOENT and ECONNREFUSED where nobody
 * serves, SIDECORE_UNTRUSTED where somebody else does, EACCES and EPERM where this user may not,
 * EPROTO where the other side speaks another version, ETIMEDOUT after some 2 s. */
static inline int sidecore_attach(struct sidecore **out, const char *path, uint64_t arena_bytes) {
    return sidecore_attach_trusting(out, path, arena_bytes, -1);
}

/* The number of the kernel of that name, or -1. */
static inline int sidecore_kernel(const struct sidecore *sc, const char *name) {
    uint32_t index;
    for (index = 0; index < sc->kernels; index++)
        if (strcmp(sc->table[index].name, name) == 0)
            return (int)sc->table[index].number;
    return -1;
}

/* How many engines there are. */
static inline int sidecore_engines(const struct sidecore *sc) { return (int)sc->engines; }

/* A buffer in the arena. `data` is NULL where there is no room. */
static inline struct sidecore_buffer sidecore_alloc(struct sidecore *sc, size_t bytes) {
    struct sidecore_buffer buffer = {NULL, 0, 0, 0, 0, NULL};
    uint64_t taken = ((uint64_t)(bytes ? bytes : 1) + 127) / 128 * 128;
    if (taken >= bytes)
        buffer.offset = sidecore_arena_take_(sc->stretches, taken);
    if (taken < bytes || buffer.offset == UINT64_MAX) {
        buffer.offset = 0;
        return buffer;
    }
    buffer.data = sc->arena + buffer.offset;
    buffer.bytes = bytes;
    buffer.taken = taken;
    buffer.home = sc->stretches;
    return buffer;
}

/* Gives a buffer back: to the arena, for other buffers, or to malloc where it moved out. Of copies
 * of a buffer one is to be freed. */
static inline void sidecore_free(struct sidecore_buffer *buffer) {
    struct sidecore_arena_ *home = buffer->home;
    if (buffer->own) {
        free(buffer->data);
        /* The daemon that was given up may still write to where it was: that is not used again. */
        if (home && home->buffers)
            home->buffers--;
    } else if (home) {
        sidecore_arena_give_(home, buffer->offset, buffer->taken);
    }
    sidecore_arena_drop_(home);
    memset(buffer, 0, sizeof *buffer);
}

/* Writes where a buffer lies in the arena to a packet. 0 where it does not lie there. */
static inline int sidecore_range_(const struct sidecore *sc, const struct sidecore_buffer *buffer,
                                  uint64_t *range) {
    uintptr_t data = (uintptr_t)buffer->data, arena = (uintptr_t)sc->arena;
    if (buffer->own || data < arena || data - arena > sc->arena_bytes
        || buffer->bytes > sc->arena_bytes - (data - arena))
        return 0;
    __atomic_store_n(&range[0], (uint64_t)(data - arena), __ATOMIC_RELAXED);
    __atomic_store_n(&range[1], (uint64_t)buffer->bytes, __ATOMIC_RELAXED);
    return 1;
}

/* Whether the daemon is gone: it ends, hung up, or its heart stands still for too long. */
static inline int sidecore_gone_(struct sidecore *sc, uint64_t *beat, uint64_t *beat_ns) {
    struct pollfd polled;
    uint64_t now_ns = sidecore_now_ns_(), heartbeat = sidecore_activity_(sc, 64);
    if (heartbeat != *beat) {
        *beat = heartbeat;
        *beat_ns = now_ns;
    }
    polled.fd = sc->socket;
    polled.events = SIDECORE_POLLRDHUP_;
    polled.revents = 0;
    if (sidecore_activity_(sc, 16) != 0 || now_ns - *beat_ns > UINT64_C(1000000) * SIDECORE_SILENCE_MS
        || (poll(&polled, 1, 0) == 1
            && (polled.revents & (SIDECORE_POLLRDHUP_ | POLLHUP | POLLERR))))
        __atomic_store_n(&sc->lost, 1, __ATOMIC_RELAXED);
    return __atomic_load_n(&sc->lost, __ATOMIC_RELAXED);
}

/* Moves the outputs of a call that was given up to memory of this process alone. SIDECORE_LOST, or
 * SIDECORE_NO_MEMORY where there is none: nothing has moved then, and it may be called again. */
static inline int sidecore_rescue(struct sidecore_request *rq) {
    void *moved[SIDECORE_RANGES] = {NULL};
    int index, failed = 0;
    for (index = 0; index < rq->output_count && index < SIDECORE_RANGES; index++) {
        if (rq->outputs[index]->own)
            continue;
        moved[index] = malloc(rq->outputs[index]->bytes ? rq->outputs[index]->bytes : 1);
        failed |= !moved[index];
    }
    for (index = 0; index < rq->output_count && index < SIDECORE_RANGES; index++) {
        struct sidecore_buffer *buffer = rq->outputs[index];
        const volatile unsigned char *from = (const volatile unsigned char *)buffer->data;
        size_t at;
        if (failed || buffer->own) {
            free(moved[index]);
            continue;
        }
        for (at = 0; at < buffer->bytes; at++)
            ((unsigned char *)moved[index])[at] = from[at];
        buffer->data = moved[index];
        buffer->own = 1;
    }
    return failed ? SIDECORE_NO_MEMORY : SIDECORE_LOST;
}

/* Calls a kernel on one engine and waits. See the head of this file for what SIDECORE_LOST asks
 * of the caller. */
static inline int sidecore_call_on(struct sidecore *sc, uint32_t engine, int kernel,
                                   struct sidecore_request *rq) {
    unsigned char *slot, *sleepers;
    uint32_t sequence, status, looks;
    uint64_t beat, beat_ns, bell, done, words = 0, nap_ns = 250000;
    int index, ranges = 0;
    if (engine >= sc->engines || kernel < 0 || rq->input_count < 0 || rq->output_count < 0
        || rq->input_count + rq->output_count > SIDECORE_RANGES)
        return SIDECORE_INVALID;
    if (__atomic_load_n(&sc->lost, __ATOMIC_RELAXED) || sidecore_activity_(sc, 16) != 0)
        return SIDECORE_LOST; /* nothing was asked: the outputs are the caller's own */
    slot = sc->segment + SIDECORE_PAGE + engine * SIDECORE_LINES;
    sleepers = slot + 256;
    for (index = 0; index < SIDECORE_WORDS; index++)
        if (rq->words[index])
            words = (uint64_t)index + 1;
    for (index = 0; index < rq->input_count; index++)
        if (!sidecore_range_(sc, rq->inputs[index], sidecore_u64_(slot + 64) + 2 * ranges++))
            return SIDECORE_INVALID;
    for (index = 0; index < rq->output_count; index++)
        if (!sidecore_range_(sc, rq->outputs[index], sidecore_u64_(slot + 64) + 2 * ranges++))
            return SIDECORE_INVALID;
    sequence = ++sc->sequences[engine];
    bell = (uint64_t)sequence | (uint64_t)(uint16_t)kernel << 32
        | (uint64_t)rq->input_count << 48 | (uint64_t)rq->output_count << 52 | words << 56;
    /* All of these lie in one line, which the engine looks at: so in one go, the bell last. */
    for (index = 0; index < (int)words; index++)
        __atomic_store_n(sidecore_u64_(slot + 16) + index, rq->words[index], __ATOMIC_RELAXED);
    __atomic_store_n(sidecore_u64_(slot), bell, __ATOMIC_RELEASE);
    /* Either we see that the engine sleeps, or it sees the bell. */
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (__atomic_load_n(sidecore_u32_(sleepers + 4), __ATOMIC_RELAXED) == 1) {
        __atomic_store_n(sidecore_u32_(sleepers + 4), 0, __ATOMIC_RELAXED);
        syscall(SYS_futex, sidecore_u32_(sleepers + 4), FUTEX_WAKE, 1, NULL, NULL, 0);
    }
    /* A look that comes too early takes the line from the engine, which must then fetch it back to
     * answer; so the first waits about as long as the last quick answers took. */
    for (looks = 0; looks < sc->patience[engine]; looks++)
        __asm__ volatile("");
    for (looks = 0; looks < 2000; looks++) {
        if (__atomic_load_n(sidecore_u32_(slot + 8), __ATOMIC_ACQUIRE) == sequence) {
            if (looks == 0)
                sc->patience[engine] -= sc->patience[engine] > 4 ? 4 : sc->patience[engine];
            else if (looks < 200 && sc->patience[engine] < 1200)
                sc->patience[engine] += 32;
            goto answered;
        }
#if defined(__x86_64__) || defined(__i386__)
        if (looks > 200)
            __builtin_ia32_pause();
#endif
    }
    beat = sidecore_activity_(sc, 64);
    beat_ns = sidecore_now_ns_();
    for (;;) {
        struct sidecore_time_ nap;
        nap_ns = nap_ns < 4000000 ? nap_ns * 2 : 8000000;
        nap.s = 0;
        nap.ns = (long)nap_ns;
        __atomic_store_n(sidecore_u32_(sleepers), 1, __ATOMIC_RELAXED);
        /* Either the engine sees that we sleep, or we see its answer. */
        __atomic_thread_fence(__ATOMIC_SEQ_CST);
        if (__atomic_load_n(sidecore_u32_(slot + 8), __ATOMIC_ACQUIRE) != sequence)
            syscall(SYS_futex, sidecore_u32_(sleepers), FUTEX_WAIT, 1, &nap, NULL, 0);
        __atomic_store_n(sidecore_u32_(sleepers), 0, __ATOMIC_RELAXED);
        if (__atomic_load_n(sidecore_u32_(slot + 8), __ATOMIC_ACQUIRE) == sequence)
            goto answered;
        if (sidecore_gone_(sc, &beat, &beat_ns)
            && __atomic_load_n(sidecore_u32_(slot + 8), __ATOMIC_ACQUIRE) != sequence)
            return sidecore_rescue(rq);
    }
answered:
    done = __atomic_load_n(sidecore_u64_(slot + 8), __ATOMIC_RELAXED);
    status = (uint32_t)(done >> 32) & 0xffff;
    words = done >> 48 & 0xff;
    for (index = 0; index < SIDECORE_WORDS; index++)
        rq->reply[index] = (uint64_t)index < words
            ? __atomic_load_n(sidecore_u64_(slot + 16) + index, __ATOMIC_RELAXED)
            : 0;
    memset(rq->text, 0, sizeof rq->text);
    if (status == 0)
        return SIDECORE_DONE;
    if (status == 3) {
        uint64_t bytes = done >> 56;
        memcpy(rq->text, slot + 128, bytes < 64 ? (size_t)bytes : 64);
        return SIDECORE_FAILED;
    }
    return SIDECORE_INVALID;
}

/* Calls a kernel on the client's own engine and waits. */
static inline int sidecore_call(struct sidecore *sc, int kernel, struct sidecore_request *rq) {
    return sidecore_call_on(sc, sc->client % sc->engines, kernel, rq);
}

#ifdef __cplusplus
}
#endif

#endif
