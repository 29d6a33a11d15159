/* io_uring's own reads, writes, polls and accepts of a connection's descriptors, with nothing but
 * the system calls. */
#include "_case.h"
#include <linux/io_uring.h>

static int ring;
static struct io_uring_params params;
static unsigned char *submission, *completion;
static struct io_uring_sqe *entries;

static void set_up(void)
{
    ring = (int)syscall(SYS_io_uring_setup, 8, &params);
    if (ring < 0) {
        /* The kernel has it switched off: the same on both sides, and told. */
        printf("io_uring_setup: %s\n", strerrorname_np(errno));
        exit(0);
    }
    size_t size = params.sq_off.array + params.sq_entries * sizeof(unsigned);
    size_t done = params.cq_off.cqes + params.cq_entries * sizeof(struct io_uring_cqe);
    submission = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQ_RING);
    completion = mmap(NULL, done, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_CQ_RING);
    entries = mmap(NULL, params.sq_entries * sizeof *entries, PROT_READ | PROT_WRITE, MAP_SHARED,
                   ring, IORING_OFF_SQES);
}

/* One operation, waited for; its result or its error's name. */
static void run(const char *words, int operation, int fd, void *memory, unsigned length)
{
    unsigned *tail = (unsigned *)(submission + params.sq_off.tail), at = *tail % params.sq_entries;
    struct io_uring_sqe *entry = &entries[at];
    memset(entry, 0, sizeof *entry);
    entry->opcode = (unsigned char)operation;
    entry->fd = fd;
    entry->addr = (unsigned long)memory;
    entry->len = length;
    if (operation == IORING_OP_POLL_ADD)
        entry->poll32_events = POLLIN;
    ((unsigned *)(submission + params.sq_off.array))[at] = at;
    __atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
    NEED(syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0));
    unsigned *head = (unsigned *)(completion + params.cq_off.head);
    struct io_uring_cqe *done = (struct io_uring_cqe *)(completion + params.cq_off.cqes);
    int result = done[*head % params.cq_entries].res;
    __atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
    if (result < 0)
        printf("%s: %s\n", words, strerrorname_np(-result));
    else
        printf("%s: %d\n", words, result);
}

int main(void)
{
    int ends[2];
    char buffer[16];
    set_up();
    pair(ends);
    run("write", IORING_OP_WRITE, ends[0], "hello", 5);
    run("poll", IORING_OP_POLL_ADD, ends[1], NULL, 0);
    run("read", IORING_OP_READ, ends[1], buffer, sizeof buffer);
    run("send", IORING_OP_SEND, ends[1], "answer", 6);
    run("recv", IORING_OP_RECV, ends[0], buffer, sizeof buffer);
    close(ends[0]);
    run("end", IORING_OP_READ, ends[1], buffer, sizeof buffer);
    return 0;
}
