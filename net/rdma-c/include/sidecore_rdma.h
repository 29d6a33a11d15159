/* RDMA over TCP (iWARP), for C and C++. Link with -lsidecore_rdma.
 *
 *     struct sidecore_rdma *rdma;
 *     if (sidecore_rdma_open(&rdma, NULL) == 0) {
 *         int64_t queue = sidecore_rdma_queue(rdma, 256);
 *         struct sidecore_rdma_region mine;
 *         sidecore_rdma_register(rdma, bytes, sizeof bytes, SIDECORE_RDMA_REMOTE_READ, &mine);
 *         sidecore_rdma_listen(rdma, "192.0.2.7:7174", 16, NULL);
 *         while (sidecore_rdma_wait(rdma, -1) >= 0) {
 *             struct sidecore_rdma_event event;
 *             while (sidecore_rdma_event(rdma, &event) == 1)
 *                 if (event.kind == SIDECORE_RDMA_REQUESTED)
 *                     sidecore_rdma_accept(rdma, event.connection, queue, queue, &mine, 24);
 *             ... sidecore_rdma_poll(rdma, queue, ...) ...
 *         }
 *         sidecore_rdma_close(rdma);
 *     }
 *
 * Calls return 0 or their result, or a negative errno: -EAGAIN if a queue is full, -EACCES if a
 * piece is not in registered memory with the required rights, -ENOENT for a connection, listener or
 * queue that does not exist (any more), -ENOTCONN for a connection that is not open, -EMSGSIZE for
 * too long private data or messages, -ENOSPC if a table is full, -ESHUTDOWN when the engine of the
 * stack is gone, and all connections with it. Only sidecore_rdma_wait blocks and, on the stack,
 * calls that open a connection or a listener (a round trip to the engine).
 *
 * The program owns the memory. From its registration to its deregistration it stays mapped, and any
 * call on this device may read and write it, as far as its rights allow. Keys are 32 bits of a keyed
 * function; a peer that uses a wrong one loses its connection.
 *
 * Threads: one at a time uses a device; several threads may have one each. A child process must not
 * use its parent's. Progress is made only in calls: a polling program calls sidecore_rdma_progress;
 * a sleeping one calls sidecore_rdma_wait, or sidecore_rdma_arm and then waits until
 * sidecore_rdma_descriptor is readable.
 *
 * Needs Linux; C99 or C++11 or later; may be included in any order.
 */
#ifndef SIDECORE_RDMA_H
#define SIDECORE_RDMA_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SIDECORE_RDMA_PIECES 4
#define SIDECORE_RDMA_PRIVATE 512

/* Rights in a region. Its owner may always send from it. */
enum {
    SIDECORE_RDMA_LOCAL_WRITE = 1,       /* receives, and what is read from a peer */
    SIDECORE_RDMA_REMOTE_READ = 2,
    SIDECORE_RDMA_REMOTE_WRITE = 4,
    SIDECORE_RDMA_REMOTE_ATOMIC = 8,
    SIDECORE_RDMA_REMOTE_INVALIDATE = 16 /* a peer's message may end its key */
};

enum {
    SIDECORE_RDMA_SEND = 0,
    SIDECORE_RDMA_SEND_INVALIDATE = 1, /* `key` is the peer's key that ends with it */
    SIDECORE_RDMA_IMMEDIATE = 2,       /* `operand`, eight bytes, into the peer's next receive */
    SIDECORE_RDMA_WRITE = 3,
    SIDECORE_RDMA_READ = 4,            /* into one piece */
    SIDECORE_RDMA_ADD = 5,             /* adds `operand` to an aligned word of eight bytes; bits of
                                          `operand_mask` are the highest ones of fields of it */
    SIDECORE_RDMA_SWAP = 6,            /* the word becomes `operand` in the bits of `operand_mask` */
    SIDECORE_RDMA_COMPARE_SWAP = 7,    /* the same, where it is `compare` in those of `compare_mask` */
    SIDECORE_RDMA_RECEIVE = 8          /* in completions only */
};

enum {
    SIDECORE_RDMA_DONE = 0,
    SIDECORE_RDMA_FLUSHED = 1, /* the connection ended before */
    SIDECORE_RDMA_LOCAL = 2    /* memory of this side was not there any more */
};

enum {
    SIDECORE_RDMA_REQUESTED = 1,   /* accept or reject it */
    SIDECORE_RDMA_ESTABLISHED = 2, /* messages go */
    SIDECORE_RDMA_ENDED = 3        /* over, or it never began; disconnect frees its place */
};

/* Ends of a connection. */
enum {
    SIDECORE_RDMA_ORDERLY = 0,
    SIDECORE_RDMA_REJECTED = 1,
    SIDECORE_RDMA_LOST = 2,  /* the stream broke, or could not be opened */
    SIDECORE_RDMA_START = 3, /* the peer speaks another protocol */
    SIDECORE_RDMA_BLAMED = 4, /* this side ended it, and reported a fault to the peer */
    SIDECORE_RDMA_ACCUSED = 5 /* the peer ended it, and reported a fault */
};

struct sidecore_rdma; /* a device */

/* A region, in the form for a peer: 24 bytes, to be sent unchanged between machines of one
 * architecture. */
struct sidecore_rdma_region {
    uint64_t address; /* of its first byte, and the offset by which a peer names it */
    uint64_t bytes;
    uint32_t key;
    uint32_t reserved;
};

/* A piece of local registered memory. */
struct sidecore_rdma_piece {
    uint64_t address;
    uint32_t bytes;
    uint32_t key;
};

/* Zero selects a default. `size` is sizeof(struct sidecore_rdma_options). */
struct sidecore_rdma_options {
    uint32_t size;
    uint32_t send_depth;    /* 128 */
    uint32_t receive_depth; /* 128 */
    uint32_t reads;         /* reads and atomics at a time, each way: 16 */
    uint8_t without_crc;    /* no CRC, unless the peer wants one */
    uint8_t waits;          /* a message that finds no receive waits for one, else it ends all */
    uint8_t peer_to_peer;   /* the accepting side may send first */
    uint8_t immediate_alone; /* immediate data that are not solicited complete without a receive */
    uint8_t reserved[4];
};

struct sidecore_rdma_work {
    uint64_t id; /* comes back with the completion */
    uint32_t kind;
    uint32_t fence; /* it begins after all earlier reads and atomics were answered */
    uint32_t piece_count;
    uint32_t key;    /* of the peer's region */
    uint64_t remote; /* address there */
    uint64_t operand;
    uint64_t compare;
    uint64_t operand_mask; /* of a swap, and of a compare, 0 stands for all bits */
    uint64_t compare_mask;
    uint32_t solicited;    /* messages, immediate data: set in the peer's completion */
    uint32_t reserved;
    struct sidecore_rdma_piece pieces[SIDECORE_RDMA_PIECES];
};

struct sidecore_rdma_completion {
    uint64_t id;
    int64_t connection;
    uint32_t kind;
    uint32_t status;
    uint32_t bytes;
    uint32_t invalidated;   /* a key of this side that ended with a message, or 0 */
    uint32_t has_immediate; /* then `value` is the peer's; of an atomic, the word as it was */
    uint32_t solicited;
    uint64_t value;
};

struct sidecore_rdma_event {
    uint32_t kind;
    uint32_t end; /* of SIDECORE_RDMA_ENDED */
    int64_t connection;
    int64_t listener; /* of SIDECORE_RDMA_REQUESTED */
    uint32_t private_bytes;
    uint8_t private_data[SIDECORE_RDMA_PRIVATE];
};

/* `socket` is the path of an engine's socket; "" selects the kernel's TCP; NULL the environment:
 * the path in SIDECORE_RDMA_SOCKET, without it the kernel's TCP. */
int sidecore_rdma_open(struct sidecore_rdma **out, const char *socket);
void sidecore_rdma_close(struct sidecore_rdma *rdma);

int sidecore_rdma_register(struct sidecore_rdma *rdma, void *address, size_t bytes,
                           unsigned access, struct sidecore_rdma_region *out);
int sidecore_rdma_deregister(struct sidecore_rdma *rdma, uint32_t key);

/* A completion queue of `depth` entries. */
int64_t sidecore_rdma_queue(struct sidecore_rdma *rdma, unsigned depth);
/* Drops its completions, too; later ones of its connections are dropped from then on. */
int sidecore_rdma_drop_queue(struct sidecore_rdma *rdma, int64_t queue);

/* A queue of `depth` receives (at most 16,384) for several connections. */
int64_t sidecore_rdma_shared(struct sidecore_rdma *rdma, unsigned depth);
/* Drops its receives, too, which have no completion. */
int sidecore_rdma_drop_shared(struct sidecore_rdma *rdma, int64_t shared);
/* Makes a connection use it for receives: before it is accepted or, if opened from this side,
 * established. Completions are reported to the connection's receive queue. */
int sidecore_rdma_share(struct sidecore_rdma *rdma, int64_t connection, int64_t shared);
int sidecore_rdma_post_shared(struct sidecore_rdma *rdma, int64_t shared, uint64_t id,
                              const struct sidecore_rdma_piece *pieces, unsigned count);

/* Addresses are "192.0.2.7:7174" or "[2001:db8::7]:7174". Port 0 selects a free one. */
int64_t sidecore_rdma_listen(struct sidecore_rdma *rdma, const char *address, unsigned backlog,
                             const struct sidecore_rdma_options *options);
int sidecore_rdma_port(struct sidecore_rdma *rdma, int64_t listener);
int sidecore_rdma_close_listener(struct sidecore_rdma *rdma, int64_t listener);

/* At most 508 bytes of private data each way (512 less the depths of reads, RFC 6581). */
int64_t sidecore_rdma_connect(struct sidecore_rdma *rdma, const char *peer,
                              const struct sidecore_rdma_options *options, int64_t send_queue,
                              int64_t receive_queue, const void *private_data, size_t bytes);
/* The same from a local address; on the stack only its port is used. */
int64_t sidecore_rdma_connect_from(struct sidecore_rdma *rdma, const char *local, const char *peer,
                                   const struct sidecore_rdma_options *options, int64_t send_queue,
                                   int64_t receive_queue, const void *private_data, size_t bytes);
/* Attempts to connect that take longer end (SIDECORE_RDMA_LOST); a minute by default. */
int sidecore_rdma_limit_opening(struct sidecore_rdma *rdma, unsigned limit_ms);
/* Connections opened from now on delay their first message by this time: Linux's siw may miss
 * one directly after its reply. Meanwhile sidecore_rdma_arm returns 0. */
int sidecore_rdma_hold_first(struct sidecore_rdma *rdma, unsigned time_ms);
int sidecore_rdma_accept(struct sidecore_rdma *rdma, int64_t connection, int64_t send_queue,
                         int64_t receive_queue, const void *private_data, size_t bytes);
int sidecore_rdma_reject(struct sidecore_rdma *rdma, int64_t connection,
                         const void *private_data, size_t bytes);
/* Ends both streams in order, which SIDECORE_RDMA_ENDED reports; the place stays until
 * disconnect. */
int sidecore_rdma_shut(struct sidecore_rdma *rdma, int64_t connection);
/* In order: posted work is completed, if the peer allows it within some seconds. */
int sidecore_rdma_disconnect(struct sidecore_rdma *rdma, int64_t connection);
/* At once. */
int sidecore_rdma_abort(struct sidecore_rdma *rdma, int64_t connection);

int sidecore_rdma_post(struct sidecore_rdma *rdma, int64_t connection,
                       const struct sidecore_rdma_work *work);
/* Allowed from SIDECORE_RDMA_REQUESTED on. */
int sidecore_rdma_post_receive(struct sidecore_rdma *rdma, int64_t connection, uint64_t id,
                               const struct sidecore_rdma_piece *pieces, unsigned count);

/* Cancel a receive that no message has begun to fill, the first one with that number, which then
 * has no completion: 1, or 0 if there is none. */
int sidecore_rdma_cancel_receive(struct sidecore_rdma *rdma, int64_t connection, uint64_t id);
int sidecore_rdma_cancel_shared(struct sidecore_rdma *rdma, int64_t shared, uint64_t id);

/* 1 and an event, or 0. */
int sidecore_rdma_event(struct sidecore_rdma *rdma, struct sidecore_rdma_event *out);
/* The number of completions returned. Makes progress if there are none. */
int sidecore_rdma_poll(struct sidecore_rdma *rdma, int64_t queue,
                       struct sidecore_rdma_completion *out, unsigned count);
/* 1 if there was progress. */
int sidecore_rdma_progress(struct sidecore_rdma *rdma);
/* 1 once there is an event or a completion, 0 at the time limit; -1 ms: no limit. */
int sidecore_rdma_wait(struct sidecore_rdma *rdma, int timeout_ms);
/* 1 if the caller may wait for the descriptor, 0 if there is an event or completion already. */
int sidecore_rdma_arm(struct sidecore_rdma *rdma);
int sidecore_rdma_descriptor(struct sidecore_rdma *rdma);

#ifdef __cplusplus
}
#endif

#endif
