/* The client of the sidecore daemon, in C++: sidecore.h with owners of what it hands out.
 *
 *     sidecore_client::Client client; // or client("/run/sidecore/daemon.sock", 1 << 20)
 *     sidecore_client::Buffer in = client.alloc(1000 * sizeof(double));
 *     std::iota(in.begin<double>(), in.end<double>(), 0.0);
 *     sidecore_client::Answer sum = client.call(client.kernel("sum_f64"), {}, {&in});
 *     if (sum)
 *         ... sum.as_double(0) ...
 *     else if (sum.status == SIDECORE_LOST)
 *         ... the daemon is gone: add them up yourself, on the same buffers ...
 *
 * Why here: an attachment, a buffer or the buffers of an open job that an exception leaves behind
 * would stay in the arena for good.
 * Must stay true: nothing but what sidecore.h documents; that header says what a call asks of its
 * caller. A buffer's bytes may move in a call whose output it is, so ask for data() anew after one.
 * Only what cannot go on throws (Error): no daemon, no kernel of that name, no room in the arena.
 *
 * Header-only over libsidecore: link with -lsidecore. C++17 or later.
 */
#ifndef SIDECORE_HPP
#define SIDECORE_HPP

#include "sidecore.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>

/* `sidecore` itself is the attachment's type in C. */
namespace sidecore_client {

/* An error with sidecore.h's number, a negative errno. */
class Error : public std::runtime_error {
public:
    Error(int code, const std::string &text) : std::runtime_error(text), code_(code) {}
    int code() const noexcept { return code_; }

private:
    int code_;
};

/* Memory that calls read and write; given back at its end. Movable; its place in memory is the
 * same for its life, as open jobs need it. May outlive its client once no job names it. */
class Buffer {
public:
    void *data() const noexcept { return raw_->data; }
    std::size_t bytes() const noexcept { return raw_->bytes; }

    template <typename T> T *begin() const noexcept {
        static_assert(std::is_trivially_copyable<T>::value, "engines copy bytes");
        return static_cast<T *>(raw_->data);
    }
    template <typename T> T *end() const noexcept { return begin<T>() + raw_->bytes / sizeof(T); }

    struct sidecore_buffer *raw() const noexcept { return raw_.get(); }

private:
    friend class Client;
    struct Free {
        void operator()(struct sidecore_buffer *buffer) const noexcept {
            sidecore_free(buffer);
            delete buffer;
        }
    };
    explicit Buffer(const struct sidecore_buffer &raw) : raw_(new struct sidecore_buffer(raw)) {}
    std::unique_ptr<struct sidecore_buffer, Free> raw_;
};

/* The end of a call or a job. True where an engine did it. */
struct Answer {
    int status = SIDECORE_INVALID;
    std::uint64_t token = 0; /* of a job */
    std::array<std::uint64_t, SIDECORE_WORDS> words{};
    std::string text; /* of SIDECORE_FAILED */

    explicit operator bool() const noexcept { return status == SIDECORE_DONE; }
    double as_double(std::size_t word) const {
        double value = 0;
        std::memcpy(&value, &words.at(word), sizeof value);
        return value;
    }
};

using Words = std::initializer_list<std::uint64_t>;
using Buffers = std::initializer_list<const Buffer *>;

/* An attachment. Movable; any thread may call, and the last one to use it ends it. */
class Client {
public:
    explicit Client(const char *path = nullptr, std::uint64_t arena_bytes = 1 << 20) {
        struct sidecore *client = nullptr;
        const int error = sidecore_attach(&client, path, arena_bytes);
        take(error, client);
    }
    explicit Client(const struct sidecore_options &options) {
        struct sidecore *client = nullptr;
        const int error = sidecore_attach_with(&client, &options);
        take(error, client);
    }

    int kernel(const std::string &name) const {
        const int number = sidecore_kernel(raw_.get(), name.c_str());
        if (number < 0)
            throw Error(number, "the daemon has no kernel " + name);
        return number;
    }
    int engines() const noexcept { return sidecore_engines(raw_.get()); }

    Buffer alloc(std::size_t bytes) const {
        const struct sidecore_buffer raw = sidecore_alloc(raw_.get(), bytes);
        if (raw.data == nullptr)
            throw Error(SIDECORE_NO_MEMORY, "no room for " + std::to_string(bytes) +
                                                " bytes in the arena, or the daemon is gone");
        return Buffer(raw);
    }

    /* Calls a kernel and waits; on the client's own engine, or on the one of this number. */
    Answer call(int kernel, Words words, Buffers inputs = {}, Buffers outputs = {},
                std::optional<std::uint32_t> engine = std::nullopt) const {
        struct sidecore_request request = {};
        Answer answer;
        if (words.size() > SIDECORE_WORDS || inputs.size() + outputs.size() > SIDECORE_RANGES)
            return answer;
        std::copy(words.begin(), words.end(), request.words);
        for (const Buffer *buffer : inputs)
            request.inputs[request.input_count++] = buffer->raw();
        for (const Buffer *buffer : outputs)
            request.outputs[request.output_count++] = buffer->raw();
        answer.status = engine ? sidecore_call_on(raw_.get(), *engine, kernel, &request)
                               : sidecore_call(raw_.get(), kernel, &request);
        fill(answer, request.reply, request.text);
        return answer;
    }

    /* Hands a job over; its number for cancel(), or nothing where SIDECORE_JOBS are open or the
     * daemon is gone. Buffers must live until its answer was taken. */
    std::optional<std::uint64_t> submit(std::uint64_t token, int kernel, Words words,
                                        Buffers inputs = {}, Buffers outputs = {}) const {
        struct sidecore_job job = {};
        if (words.size() > SIDECORE_WORDS || inputs.size() + outputs.size() > SIDECORE_SEGMENTS)
            throw Error(SIDECORE_INVALID, "too many words or buffers for a job");
        job.token = token;
        job.kernel = kernel;
        std::copy(words.begin(), words.end(), job.words);
        int place = 0;
        for (const Buffers &list : {inputs, outputs})
            for (const Buffer *buffer : list)
                job.segments[place++] = {buffer->raw(), 0, buffer->bytes()};
        job.input_count = static_cast<int>(inputs.size());
        job.output_count = static_cast<int>(outputs.size());
        std::uint64_t id = 0;
        const int status = sidecore_submit(raw_.get(), &job, &id);
        if (status == SIDECORE_FULL || status == SIDECORE_LOST)
            return std::nullopt;
        if (status < 0)
            throw Error(status, "the job names no kernel, or buffers of another client");
        return id;
    }

    /* The answer of a job that has ended, in any order; nothing at once where there is none. */
    std::optional<Answer> poll() const {
        struct sidecore_outcome outcome = {};
        return answer(sidecore_poll(raw_.get(), &outcome), outcome);
    }
    /* The same, and waits; `timeout_ms` below 0: for ever, while a job is open. */
    std::optional<Answer> wait(int timeout_ms = -1) const {
        struct sidecore_outcome outcome = {};
        return answer(sidecore_wait(raw_.get(), &outcome, timeout_ms), outcome);
    }
    /* True where the job was taken back before it was begun. */
    bool cancel(std::uint64_t id) const noexcept { return sidecore_cancel(raw_.get(), id) == 1; }
    /* For epoll and its like; the library's own. */
    int descriptor() const noexcept { return sidecore_descriptor(raw_.get()); }

    struct sidecore *raw() const noexcept { return raw_.get(); }

private:
    struct Detach {
        void operator()(struct sidecore *client) const noexcept { sidecore_detach(client); }
    };
    void take(int error, struct sidecore *client) {
        if (error != 0)
            throw Error(error, sidecore_attach_text(error));
        raw_.reset(client);
    }
    static void fill(Answer &answer, const std::uint64_t *reply, const char *text) {
        std::copy(reply, reply + SIDECORE_WORDS, answer.words.begin());
        answer.text = text;
    }
    static std::optional<Answer> answer(int found, const struct sidecore_outcome &outcome) {
        if (found != 1)
            return std::nullopt;
        Answer answer;
        answer.status = outcome.status;
        answer.token = outcome.token;
        fill(answer, outcome.reply, outcome.text);
        return answer;
    }

    std::unique_ptr<struct sidecore, Detach> raw_;
};

} // namespace sidecore_client

#endif
