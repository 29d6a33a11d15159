/* Two devices in one process: one listens, the other connects, puts, gets, sends and adds; then a
 * key that nobody gave. The first argument is the transport, the second an address to listen at. */
#include "sidecore_rdma.h"

#include <stdio.h>
#include <string.h>

#define CHECK(what)                                                                       \
    do {                                                                                  \
        if (!(what)) {                                                                    \
            fprintf(stderr, "line %d: %s\n", __LINE__, #what);                            \
            return 1;                                                                     \
        }                                                                                 \
    } while (0)

static struct sidecore_rdma *server, *client;
static struct sidecore_rdma_event event;
static struct sidecore_rdma_completion done;

/* Moves both until `device` has an event. */
static int next_event(struct sidecore_rdma *device) {
    long tries;
    for (tries = 0; tries < 20000000; tries++) {
        sidecore_rdma_progress(server);
        sidecore_rdma_progress(client);
        if (sidecore_rdma_event(device, &event) == 1)
            return (int)event.kind;
    }
    return -1;
}

static int next_done(struct sidecore_rdma *device, int64_t queue) {
    long tries;
    for (tries = 0; tries < 20000000; tries++) {
        sidecore_rdma_progress(server);
        sidecore_rdma_progress(client);
        if (sidecore_rdma_poll(device, queue, &done, 1) == 1)
            return (int)done.status;
    }
    return -1;
}

int main(int count, char **arguments) {
    static char here[100000], there[100000], back[100000];
    static uint64_t words[2] = {40, 0};
    struct sidecore_rdma_region mine, theirs, returned, counter;
    struct sidecore_rdma_work work;
    struct sidecore_rdma_piece piece;
    struct sidecore_rdma_options options;
    int64_t from, to, listener, connection, accepted, shared, other;
    char address[64];
    size_t at;

    CHECK(count == 3);
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.waits = 1;
    CHECK(sidecore_rdma_open(&server, arguments[1]) == 0);
    CHECK(sidecore_rdma_open(&client, arguments[1]) == 0);
    from = sidecore_rdma_queue(client, 16);
    to = sidecore_rdma_queue(server, 16);
    CHECK(from >= 0 && to >= 0);
    listener = sidecore_rdma_listen(server, arguments[2], 4, &options);
    CHECK(listener >= 0);
    snprintf(address, sizeof address, "%.*s:%d", (int)(strrchr(arguments[2], ':') - arguments[2]),
             arguments[2], sidecore_rdma_port(server, listener));
    CHECK(sidecore_rdma_register(server, there, sizeof there,
                                 SIDECORE_RDMA_LOCAL_WRITE | SIDECORE_RDMA_REMOTE_READ |
                                     SIDECORE_RDMA_REMOTE_WRITE,
                                 &theirs) == 0);
    CHECK(sidecore_rdma_register(server, words, sizeof words, SIDECORE_RDMA_REMOTE_ATOMIC,
                                 &counter) == 0);
    connection = sidecore_rdma_connect(client, address, &options, from, from, "tell me", 7);
    CHECK(connection >= 0);
    CHECK(next_event(server) == SIDECORE_RDMA_REQUESTED && event.listener == listener);
    CHECK(event.private_bytes == 7 && memcmp(event.private_data, "tell me", 7) == 0);
    accepted = event.connection;
    CHECK(sidecore_rdma_accept(server, accepted, to, to, &theirs, sizeof theirs) == 0);
    CHECK(next_event(client) == SIDECORE_RDMA_ESTABLISHED && event.connection == connection);
    CHECK(event.private_bytes == sizeof theirs);
    memcpy(&theirs, event.private_data, sizeof theirs);
    CHECK(next_event(server) == SIDECORE_RDMA_ESTABLISHED);

    for (at = 0; at < sizeof here; at++)
        here[at] = (char)(at * 31);
    CHECK(sidecore_rdma_register(client, here, sizeof here, 0, &mine) == 0);
    CHECK(sidecore_rdma_register(client, back, sizeof back, SIDECORE_RDMA_LOCAL_WRITE,
                                 &returned) == 0);
    memset(&work, 0, sizeof work);
    work.id = 1;
    work.kind = SIDECORE_RDMA_WRITE;
    work.key = theirs.key;
    work.remote = theirs.address;
    work.piece_count = 1;
    work.pieces[0].address = mine.address;
    work.pieces[0].bytes = sizeof here;
    work.pieces[0].key = mine.key;
    CHECK(sidecore_rdma_post(client, connection, &work) == 0);
    CHECK(next_done(client, from) == SIDECORE_RDMA_DONE && done.id == 1);

    work.id = 2;
    work.kind = SIDECORE_RDMA_READ;
    CHECK(sidecore_rdma_post(client, connection, &work) == -EACCES); /* not writable */
    work.pieces[0].address = returned.address;
    work.pieces[0].key = returned.key;
    CHECK(sidecore_rdma_post(client, connection, &work) == 0);
    CHECK(next_done(client, from) == SIDECORE_RDMA_DONE && done.id == 2);
    CHECK(memcmp(here, back, sizeof here) == 0 && memcmp(here, there, sizeof here) == 0);

    memset(&work, 0, sizeof work);
    work.id = 3;
    work.kind = SIDECORE_RDMA_ADD;
    work.key = counter.key;
    work.remote = counter.address;
    work.operand = 2;
    CHECK(sidecore_rdma_post(client, connection, &work) == 0);
    CHECK(next_done(client, from) == SIDECORE_RDMA_DONE && done.value == 40 && words[0] == 42);

    work.kind = SIDECORE_RDMA_IMMEDIATE;
    work.operand = 77;
    CHECK(sidecore_rdma_post(client, connection, &work) == 0);
    CHECK(next_done(client, from) == SIDECORE_RDMA_DONE);
    piece.address = theirs.address;
    piece.bytes = 64;
    piece.key = theirs.key;
    CHECK(sidecore_rdma_post_receive(server, accepted, 9, &piece, 1) == 0);
    CHECK(next_done(server, to) == SIDECORE_RDMA_DONE && done.kind == SIDECORE_RDMA_RECEIVE);
    CHECK(done.id == 9 && done.has_immediate == 1 && done.value == 77);

    /* By its bits; the words of the other side are looked at once it is done. */
    memset(&work, 0, sizeof work);
    work.kind = SIDECORE_RDMA_COMPARE_SWAP;
    work.key = counter.key;
    work.remote = counter.address + 8;
    work.compare = 0x10;
    work.compare_mask = 0xf0;
    work.operand = 0xabcd;
    work.operand_mask = 0xff00;
    words[1] = 0x1215;
    CHECK(sidecore_rdma_post(client, connection, &work) == 0);
    CHECK(next_done(client, from) == SIDECORE_RDMA_DONE && done.value == 0x1215);
    CHECK(words[1] == 0xab15);

    /* A receive that is taken back; and receives that connections share. */
    CHECK(sidecore_rdma_post_receive(server, accepted, 10, &piece, 1) == 0);
    CHECK(sidecore_rdma_cancel_receive(server, accepted, 10) == 1);
    CHECK(sidecore_rdma_cancel_receive(server, accepted, 10) == 0);
    shared = sidecore_rdma_shared(server, 4);
    CHECK(shared >= 0);
    CHECK(sidecore_rdma_share(server, accepted, shared) == -ENOTCONN); /* too late */
    CHECK(sidecore_rdma_limit_opening(client, 60000) == 0);
    CHECK(sidecore_rdma_hold_first(client, 0) == 0);
    other = sidecore_rdma_connect(client, address, &options, from, from, NULL, 0);
    CHECK(other >= 0 && next_event(server) == SIDECORE_RDMA_REQUESTED);
    CHECK(sidecore_rdma_share(server, event.connection, shared) == 0);
    CHECK(sidecore_rdma_accept(server, event.connection, to, to, NULL, 0) == 0);
    CHECK(next_event(client) == SIDECORE_RDMA_ESTABLISHED);
    CHECK(next_event(server) == SIDECORE_RDMA_ESTABLISHED);
    CHECK(sidecore_rdma_post_receive(server, event.connection, 1, &piece, 1) == -EINVAL);
    memset(&work, 0, sizeof work);
    work.kind = SIDECORE_RDMA_SEND;
    work.solicited = 1;
    work.piece_count = 1;
    work.pieces[0].address = mine.address;
    work.pieces[0].bytes = 64;
    work.pieces[0].key = mine.key;
    CHECK(sidecore_rdma_post(client, other, &work) == 0);
    CHECK(next_done(client, from) == SIDECORE_RDMA_DONE);
    CHECK(sidecore_rdma_post_shared(server, shared, 20, &piece, 1) == 0);
    CHECK(next_done(server, to) == SIDECORE_RDMA_DONE && done.id == 20 && done.bytes == 64);
    CHECK(done.connection == event.connection && done.solicited == 1);
    CHECK(sidecore_rdma_post_shared(server, shared, 21, &piece, 1) == 0);
    CHECK(sidecore_rdma_cancel_shared(server, shared, 21) == 1);
    CHECK(sidecore_rdma_drop_shared(server, shared) == 0);
    CHECK(sidecore_rdma_post_shared(server, shared, 22, &piece, 1) == -ENOTCONN);
    CHECK(sidecore_rdma_shut(client, other) == 0);
    CHECK(next_event(client) == SIDECORE_RDMA_ENDED && event.end == SIDECORE_RDMA_ORDERLY);
    CHECK(next_event(server) == SIDECORE_RDMA_ENDED && event.end == SIDECORE_RDMA_ORDERLY);
    CHECK(sidecore_rdma_disconnect(client, other) == 0);

    /* Deregistered: the peer's key leads nowhere, and costs it the connection. */
    CHECK(sidecore_rdma_deregister(server, theirs.key) == 0);
    CHECK(sidecore_rdma_deregister(server, theirs.key) == -ENOENT);
    memset(there, 0, sizeof there);
    work.kind = SIDECORE_RDMA_WRITE;
    work.key = theirs.key;
    work.remote = theirs.address;
    work.piece_count = 1;
    work.pieces[0].address = mine.address;
    work.pieces[0].bytes = 100;
    work.pieces[0].key = mine.key;
    CHECK(sidecore_rdma_post(client, connection, &work) == 0);
    CHECK(next_event(client) == SIDECORE_RDMA_ENDED && event.end == SIDECORE_RDMA_ACCUSED);
    CHECK(next_event(server) == SIDECORE_RDMA_ENDED && event.end == SIDECORE_RDMA_BLAMED);
    CHECK(there[5] == 0);
    CHECK(sidecore_rdma_post(client, connection, &work) == -ENOTCONN);
    CHECK(sidecore_rdma_disconnect(client, connection) == 0);
    CHECK(sidecore_rdma_post(client, connection, &work) == -ENOENT);
    CHECK(sidecore_rdma_wait(client, 0) >= 0);
    CHECK(sidecore_rdma_descriptor(client) >= 0 && sidecore_rdma_arm(client) >= 0);
    sidecore_rdma_close(client);
    sidecore_rdma_close(server);
    CHECK(sidecore_rdma_progress(NULL) == -EINVAL);
    puts("right");
    return 0;
}
