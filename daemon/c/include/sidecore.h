/* The client of the sidecore daemon, for C and C++. Link with -lsidecore.
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
 * Threads: any number. Calls on the same engine wait for one another (sidecore_call uses the
 * client's own engine; sidecore_call_on names one). sidecore_detach is called last, by one thread,
 * after all others are done. A child process must not use its parent's client.
 *
 * Needs Linux; C99 or C++11 or later; may be included in any order.
 */
#ifndef SIDECORE_H
#define SIDECORE_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SIDECORE_WORDS 6
#define SIDECORE_RANGES 4
#define SIDECORE_SEGMENTS 16
#define SIDECORE_JOBS 1024
#define SIDECORE_TEXT 65

/* Functions that return an int return their result, 0 or more, or a negative errno. */

/* How a call or a job ended. */
enum {
    SIDECORE_DONE = 0,                 /* on an engine; the reply counts */
    SIDECORE_LOST = -ECONNRESET,       /* the daemon is gone; do it yourself */
    SIDECORE_FAILED = -EIO,            /* the kernel gave an error; `text` says which */
    SIDECORE_INVALID = -EINVAL,        /* a buffer of another client, too many of them, no kernel */
    SIDECORE_NO_MEMORY = -ENOMEM,      /* lost, no memory for the outputs: see sidecore_rescue */
    SIDECORE_CANCELLED = -ECANCELED,   /* the job was taken back */
    SIDECORE_FULL = -EAGAIN            /* SIDECORE_JOBS jobs are open; take an outcome first */
};

/* Result of sidecore_attach where the daemon is of another user; nothing was sent to it. */
#define SIDECORE_UNTRUSTED (-EKEYREJECTED)

/* An attachment. */
struct sidecore;

/* Memory that calls read and write. */
struct sidecore_buffer {
    void *data;   /* the bytes; may change in a call whose output it is */
    size_t bytes; /* how many; may be made less for a call */
    int own;      /* not in an arena any more, but from malloc */
    /* the library's from here on: */
    uint64_t offset;
    void *home;
};

/* A call: what is asked, and after it what was answered. Set what is not used to 0. */
struct sidecore_request {
    uint64_t words[SIDECORE_WORDS];
    struct sidecore_buffer *inputs[SIDECORE_RANGES];
    struct sidecore_buffer *outputs[SIDECORE_RANGES];
    int input_count; /* inputs and outputs together: at most SIDECORE_RANGES */
    int output_count;
    uint64_t reply[SIDECORE_WORDS];
    char text[SIDECORE_TEXT];
};

/* How to attach. Set what is not used to 0. */
struct sidecore_options {
    size_t size;          /* sizeof(struct sidecore_options) */
    const char *path;     /* NULL: where a daemon is by default */
    uint64_t arena_bytes; /* memory that calls can name at once */
    int64_t trusted_uid;  /* a daemon of this user, too, besides root's and the own; 0: none */
    uint32_t silence_ms;  /* without a heartbeat for so long a daemon is given up; 0: 85 */
};

/* Attaches to the daemon at `path` (NULL: where one is by default), with an arena of `arena_bytes`.
 * 0, or a negative errno, which sidecore_attach_text puts into words: -ENOENT and -ECONNREFUSED
 * where no daemon serves, SIDECORE_UNTRUSTED where another user does, -EACCES and -EPERM where this
 * user may not, -EPROTO where the other side speaks another version, -ETIMEDOUT after some 2 s. Sets
 * *out to NULL then. */
int sidecore_attach(struct sidecore **out, const char *path, uint64_t arena_bytes);
/* The same, and trusts a daemon of `trusted_uid`, too; -1: of no other user. */
int sidecore_attach_trusting(struct sidecore **out, const char *path, uint64_t arena_bytes,
                             int64_t trusted_uid);
/* The same, with options. -EINVAL where `size` is less than this header's. */
int sidecore_attach_with(struct sidecore **out, const struct sidecore_options *options);
/* One line that says what an error of these means. */
const char *sidecore_attach_text(int error);
/* Gives everything back. Buffers in the arena end with it; free them before or after. Jobs that are
 * open are cancelled, and their outcomes never come. NULL does nothing. */
void sidecore_detach(struct sidecore *sc);

/* The number of the kernel of that name, or -ENOENT. */
int sidecore_kernel(const struct sidecore *sc, const char *name);
/* How many engines there are. */
int sidecore_engines(const struct sidecore *sc);

/* A buffer in the arena. `data` is NULL where there is no room, and once the daemon is lost: it may
 * still write to all of the arena that it was once given. */
struct sidecore_buffer sidecore_alloc(struct sidecore *sc, size_t bytes);
/* Gives a buffer back: to the arena, for other buffers, or to malloc where it moved out. Of copies
 * of a buffer one is to be freed; freeing another does nothing as long as its place is not used
 * again. */
void sidecore_free(struct sidecore_buffer *buffer);

/* Calls a kernel on the client's own engine and waits. See the head of this file for what
 * SIDECORE_LOST asks of the caller. */
int sidecore_call(struct sidecore *sc, int kernel, struct sidecore_request *rq);
/* The same on one engine, by its number from 0. */
int sidecore_call_on(struct sidecore *sc, uint32_t engine, int kernel, struct sidecore_request *rq);
/* Moves the outputs of a call that was given up to memory of this process alone. SIDECORE_LOST, or
 * SIDECORE_NO_MEMORY where there is none: nothing has moved then, and it may be called again. */
int sidecore_rescue(struct sidecore_request *rq);

/* ---- Jobs: many requests that are open at once -------------------------------------------- */

/* Bytes of a buffer. */
struct sidecore_segment {
    struct sidecore_buffer *buffer;
    size_t offset, bytes;
};

/* A request whose outcome is taken later. Set what is not used to 0. */
struct sidecore_job {
    uint64_t token; /* the caller's mark, which the outcome bears */
    int kernel;
    int input_count;  /* the first of `segments`; all together: at most SIDECORE_SEGMENTS */
    int output_count; /* those behind them, which overlap nothing */
    uint64_t words[SIDECORE_WORDS];
    struct sidecore_segment segments[SIDECORE_SEGMENTS];
};

/* The end of a job. */
struct sidecore_outcome {
    uint64_t token;
    int status; /* as of a call; also SIDECORE_CANCELLED */
    uint64_t reply[SIDECORE_WORDS];
    char text[SIDECORE_TEXT];
};

/* Hands a job over and returns at once. The job is copied; the buffers that it names, the struct
 * sidecore_buffer of its outputs included, are left alone and stay where they are until its outcome
 * was taken. A job of more than 4 segments needs 256 bytes of the arena. Its number for
 * sidecore_cancel comes in *id, unless that is NULL. SIDECORE_DONE (handed over), SIDECORE_FULL,
 * SIDECORE_INVALID, or SIDECORE_LOST: then nothing of it was begun. */
int sidecore_submit(struct sidecore *sc, const struct sidecore_job *job, uint64_t *id);
/* The outcome of a job that has ended, in any order: 1 and the outcome, or 0 at once. Where the
 * daemon went, every open job ends with SIDECORE_LOST, and its outputs have moved. */
int sidecore_poll(struct sidecore *sc, struct sidecore_outcome *outcome);
/* The same, and waits for one, `timeout_ms` at most (less than 0: for ever); 0 at once
 * where no job is open. */
int sidecore_wait(struct sidecore *sc, struct sidecore_outcome *outcome, int timeout_ms);
/* Takes a job back that was not begun: 1, and its outcome is SIDECORE_CANCELLED. One that runs is
 * told, and may end earlier: 0. */
int sidecore_cancel(struct sidecore *sc, uint64_t id);
/* A descriptor for poll, epoll and their like, readable from when a job ends until sidecore_poll
 * gives 0, and when the daemon ends. Wait for 100 ms at most where a daemon that was stopped is to
 * be noticed. The library's: do not read or close it. A negative errno where the system has none
 * left (-EMFILE). */
int sidecore_descriptor(struct sidecore *sc);

/* ---- Frames: words of the kernels yuv_to_rgb and rgb_to_yuv ------------------------------- */

/* Formats of YUV frames: planes without a gap between them; chroma 4:2:0, but 4:2:2 of I422, YUY2
 * and UYVY, and 4:4:4 of I444. */
enum {
    SIDECORE_YUV_I420 = 1,
    SIDECORE_YUV_YV12 = 2,
    SIDECORE_YUV_I422 = 3,
    SIDECORE_YUV_I444 = 4,
    SIDECORE_YUV_NV12 = 5,
    SIDECORE_YUV_NV21 = 6,
    SIDECORE_YUV_YUY2 = 7,
    SIDECORE_YUV_UYVY = 8
};
enum {
    SIDECORE_RGB_RGB = 1,
    SIDECORE_RGB_BGR = 2,
    SIDECORE_RGB_RGBA = 3,
    SIDECORE_RGB_BGRA = 4
};
enum {
    SIDECORE_MATRIX_BT601 = 1,
    SIDECORE_MATRIX_BT709 = 2,
    SIDECORE_MATRIX_BT2020 = 3
};
/* Luma of 16 to 235 and chroma of 16 to 240, or all values. */
enum {
    SIDECORE_LEVELS_LIMITED = 1,
    SIDECORE_LEVELS_FULL = 2
};

/* Word 1. */
#define SIDECORE_FRAME_FORMATS(yuv, rgb, matrix, levels) \
    ((uint64_t)(yuv) | (uint64_t)(rgb) << 8 | (uint64_t)(matrix) << 16 | (uint64_t)(levels) << 24)
/* Word 2: width and height. Word 3: bytes from a row to the next of luma (or of the one plane), and
 * of chroma; 0: rows without a gap. Word 4: the same of RGB. Word 5: the first row and the number of
 * rows, whole pairs with chroma of 4:2:0; 0: all. Word 0 is 0 for one frame, input 0 to output 0. */
#define SIDECORE_PAIR(low, high) ((uint64_t)(low) | (uint64_t)(high) << 32)

#ifdef __cplusplus
}
#endif

#endif
