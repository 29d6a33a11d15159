/* Peers of `sidecore offload bench --only patterns`: constructs and graphs of tasks, by OpenMP or
 * by oneTBB.
 *
 * Why here: both belong to a process, and both are C++. One source, so that a delay, a task, its
 * check and the way of measuring are the same code for both. Prints `ready`; reads lines of
 * numbers, `[KIND, ...]`:
 *   [1, window_ns, items_each, item_steps, region_steps]
 *     overheads of constructs
 *   [2, window_ns, way, grains, STEPS..., steps, TASKS..., NEEDS...]
 *     a graph, in way 0 by tasks, in way 1 by loops; oneTBB has one way. TASKS: the tasks of each
 *     step. NEEDS: for each task the number of tasks that it needs, and these.
 * Answers a line with the nanoseconds of a pass (the median of batches) for each construct or
 * grain, or with a string that says what went wrong; repeats until its input ends. Its one argument
 * is the number of threads. After an answer OpenMP's threads are ended, so that they take no core
 * from others. Build: c++ -std=c++17 -O2 with -fopenmp, or with -ltbb.
 */
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <memory>
#include <vector>

#ifdef _OPENMP
#include <omp.h>
#else
#include <tbb/blocked_range.h>
#include <tbb/flow_graph.h>
#include <tbb/global_control.h>
#include <tbb/parallel_for.h>
#include <tbb/parallel_reduce.h>
#include <tbb/partitioner.h>
#include <tbb/task_group.h>
#endif

namespace {

using Numbers = std::vector<std::uint64_t>;

constexpr long long BATCH_NS = 500000;
constexpr int WARM_PASSES_LEAST = 3;

long long now_ns()
{
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

/* A chain of steps, each of which needs the one before. */
inline void delay(std::uint64_t steps)
{
    std::uint64_t value = 1;
    /* The compiler must know neither the first value nor that the last is of no use. By memory, as
     * the other side does it. */
    asm volatile("" : : "r"(&value) : "memory");
    for (std::uint64_t step = 0; step < steps; step++)
        value = value * 0x5851f42d4c957f2dULL ^ step;
    asm volatile("" : : "r"(&value) : "memory");
}

/* Nanoseconds of one pass: the median of batches, after as much warm-up as shows their size. */
template <class Pass>
double measure(long long window_ns, const Pass &pass)
{
    long long begun = now_ns(), taken = 0, passes = 0;
    while (taken < window_ns / 8 || passes < WARM_PASSES_LEAST) {
        pass();
        passes++;
        taken = now_ns() - begun;
        if (taken > window_ns)
            break;
    }
    const long long batch = std::max(1LL, BATCH_NS * passes / std::max(taken, 1LL));
    std::vector<double> batches;
    begun = now_ns();
    long long until;
    do {
        const long long from = now_ns();
        for (long long one = 0; one < batch; one++)
            pass();
        until = now_ns();
        batches.push_back(double(until - from) / double(batch));
    } while (until - begun < window_ns);
    std::sort(batches.begin(), batches.end());
    const std::size_t middle = batches.size() / 2;
    return batches.size() % 2 ? batches[middle] : (batches[middle - 1] + batches[middle]) / 2;
}

/* The numbers of a line, one after the other; a line that is too short ends the program. */
struct Reader {
    const Numbers &all;
    std::size_t at = 0;

    std::uint64_t next()
    {
        if (at >= all.size())
            std::exit(2);
        return all[at++];
    }

    /* A count of things that follow, or that memory is needed for. */
    std::size_t count()
    {
        const std::uint64_t value = next();
        if (value > 1u << 24)
            std::exit(2);
        return std::size_t(value);
    }
};

/* Output of a task, on a line of its own. */
struct alignas(128) Cell {
    std::atomic<std::uint64_t> tag{0};
};

/* A graph of tasks in steps, its outputs, and the run and the grain of now. */
std::vector<std::size_t> starts, firsts;
std::vector<std::uint32_t> all_needs;
std::vector<Cell> outputs;
std::atomic<std::uint64_t> missed{0};
std::uint64_t run_now = 0, steps_now = 0;

std::uint64_t tag_of(std::uint64_t run, std::size_t task)
{
    return run << 32 | task;
}

/* Looks at the outputs of this run that the task needs, computes, leaves its own. */
inline void run_task(std::size_t task)
{
    for (std::size_t edge = firsts[task]; edge < firsts[task + 1]; edge++) {
        const std::size_t need = all_needs[edge];
        /* Relaxed: the order is what is looked at, and the peer's to make. */
        if (outputs[need].tag.load(std::memory_order_relaxed) != tag_of(run_now, need))
            missed.fetch_add(1, std::memory_order_relaxed);
    }
    delay(steps_now);
    outputs[task].tag.store(tag_of(run_now, task), std::memory_order_relaxed);
}

void read_graph(Reader &reader)
{
    const std::size_t steps = reader.count();
    starts.assign(1, 0);
    for (std::size_t step = 0; step < steps; step++)
        starts.push_back(starts.back() + reader.count());
    const std::size_t tasks = starts.back();
    firsts.assign(1, 0);
    all_needs.clear();
    for (std::size_t task = 0; task < tasks; task++) {
        for (std::size_t left = reader.count(); left > 0; left--) {
            const std::size_t need = reader.count();
            if (need >= task)
                std::exit(2);
            all_needs.push_back(std::uint32_t(need));
        }
        firsts.push_back(all_needs.size());
    }
    /* Outputs of other graphs have tags of earlier runs. */
    if (outputs.size() != tasks)
        outputs = std::vector<Cell>(tasks);
}

#ifdef _OPENMP

char *marks;
const std::uint32_t *needs;

/* One thread makes the tasks, in their order; each is held back until what it needs is done. */
void pass_by_tasks()
{
    const std::size_t tasks = firsts.size() - 1;
#pragma omp parallel
#pragma omp single
    for (std::size_t task = 0; task < tasks; task++) {
        const unsigned long first = firsts[task], last = firsts[task + 1];
#pragma omp task firstprivate(task) \
    depend(iterator(unsigned long edge = first : last), in : marks[needs[edge]]) \
    depend(out : marks[task])
        run_task(task);
    }
}

/* A loop for each step; the barrier at its end is the order. */
void pass_by_loops()
{
    const std::size_t steps = starts.size() - 1;
#pragma omp parallel
    for (std::size_t step = 0; step < steps; step++) {
        const std::size_t from = starts[step], until = starts[step + 1];
#pragma omp for schedule(static)
        for (std::size_t task = from; task < until; task++)
            run_task(task);
    }
}

template <class Each>
void with_pass(std::uint64_t way, const Each &each)
{
    std::vector<char> addresses(firsts.size());
    marks = addresses.data();
    needs = all_needs.data();
    each(way == 0 ? pass_by_tasks : pass_by_loops);
}

bool constructs(std::size_t threads, Reader &reader, std::vector<double> &answer)
{
    const long long window_ns = (long long)reader.next();
    const long items = long(reader.count() * threads);
    const std::uint64_t item = reader.next(), region = reader.next();
    bool right = true;
    const auto add = [&](const auto &pass) { answer.push_back(measure(window_ns, pass)); };

    add([&] {
#pragma omp parallel
        delay(region);
    });
    add([&] {
#pragma omp parallel for schedule(static)
        for (long index = 0; index < items; index++)
            delay(item);
    });
    add([&] {
#pragma omp parallel for schedule(dynamic, 1)
        for (long index = 0; index < items; index++)
            delay(item);
    });
    add([&] {
#pragma omp parallel for schedule(guided)
        for (long index = 0; index < items; index++)
            delay(item);
    });
    add([&] {
#pragma omp parallel
        {
            delay(region);
#pragma omp barrier
            delay(region);
        }
    });
    add([&] {
        std::size_t sum = 0;
#pragma omp parallel reduction(+ : sum)
        {
            delay(region);
            sum += 1;
        }
        right = right && sum == threads;
    });
    add([&] {
#pragma omp parallel
#pragma omp single
        delay(region);
    });
    return right;
}

void begin(std::size_t threads)
{
    omp_set_dynamic(0);
    omp_set_num_threads(int(threads));
}

void rest()
{
    omp_pause_resource_all(omp_pause_hard);
}

#else

using Node = tbb::flow::continue_node<tbb::flow::continue_msg>;

/* A flow graph, made once for all of its runs. */
template <class Each>
void with_pass(std::uint64_t, const Each &each)
{
    tbb::flow::graph flow;
    std::vector<std::unique_ptr<Node>> nodes;
    std::vector<Node *> roots;
    for (std::size_t task = 0; task + 1 < firsts.size(); task++) {
        nodes.push_back(std::make_unique<Node>(flow, [task](const tbb::flow::continue_msg &) {
            run_task(task);
            return tbb::flow::continue_msg();
        }));
        for (std::size_t edge = firsts[task]; edge < firsts[task + 1]; edge++)
            tbb::flow::make_edge(*nodes[all_needs[edge]], *nodes[task]);
        if (firsts[task] == firsts[task + 1])
            roots.push_back(nodes[task].get());
    }
    each([&] {
        for (Node *root : roots)
            root->try_put(tbb::flow::continue_msg());
        flow.wait_for_all();
    });
}

bool constructs(std::size_t threads, Reader &reader, std::vector<double> &answer)
{
    using Range = tbb::blocked_range<std::size_t>;
    const long long window_ns = (long long)reader.next();
    const std::size_t items = reader.count() * threads;
    const std::uint64_t item = reader.next(), region = reader.next();
    bool right = true;
    const auto add = [&](const auto &pass) { answer.push_back(measure(window_ns, pass)); };
    const auto some = [&](const Range &range) {
        for (std::size_t index = range.begin(); index != range.end(); ++index)
            delay(item);
    };
    const auto everywhere = [&] {
        const auto one = [&](std::size_t) { delay(region); };
        tbb::parallel_for(std::size_t(0), threads, one, tbb::static_partitioner());
    };

    add(everywhere);
    add([&] { tbb::parallel_for(Range(0, items), some, tbb::static_partitioner()); });
    add([&] { tbb::parallel_for(Range(0, items), some, tbb::simple_partitioner()); });
    add([&] { tbb::parallel_for(Range(0, items), some, tbb::auto_partitioner()); });
    add([&] {
        everywhere();
        everywhere();
    });
    add([&] {
        const auto part = [&](const Range &range, std::size_t sum) {
            for (std::size_t index = range.begin(); index != range.end(); ++index) {
                delay(region);
                sum += 1;
            }
            return sum;
        };
        const std::size_t sum = tbb::parallel_reduce(
            Range(0, threads), std::size_t(0), part, std::plus<std::size_t>());
        right = right && sum == threads;
    });
    add([&] {
        tbb::task_group group;
        group.run([&] { delay(region); });
        group.wait();
    });
    return right;
}

void begin(std::size_t threads)
{
    /* It holds for as long as it lives: until the program ends. */
    static tbb::global_control limit(tbb::global_control::max_allowed_parallelism, threads);
}

void rest() {}

#endif

/* Nanoseconds of one execution of a graph, for each number of steps of its tasks. */
bool grains(Reader &reader, std::vector<double> &answer)
{
    const long long window_ns = (long long)reader.next();
    const std::uint64_t way = reader.next();
    Numbers steps(reader.count());
    for (std::uint64_t &each : steps)
        each = reader.next();
    read_graph(reader);
    missed = 0;
    bool right = true;
    with_pass(way, [&](const auto &pass) {
        for (const std::uint64_t each : steps) {
            steps_now = each;
            answer.push_back(measure(window_ns, [&] {
                run_now++;
                pass();
            }));
            for (std::size_t task = 0; task < outputs.size(); task++)
                right = right && outputs[task].tag.load() == tag_of(run_now, task);
        }
    });
    return right && missed == 0;
}

bool read_numbers(Numbers &numbers)
{
    static char *line = nullptr;
    static std::size_t room = 0;
    if (getline(&line, &room, stdin) < 0)
        return false;
    numbers.clear();
    char *at = line;
    while (*at == '[' || *at == ',') {
        char *end = ++at;
        numbers.push_back(std::strtoull(at, &end, 10));
        if (end == at)
            std::exit(2);
        at = end;
    }
    return true;
}

} // namespace

int main(int count_arguments, char **arguments)
{
    const long threads = count_arguments > 1 ? std::strtol(arguments[1], nullptr, 10) : 0;
    if (threads < 1 || threads > 1024)
        return 2;
    begin(std::size_t(threads));
    std::puts("ready");
    std::fflush(stdout);
    Numbers numbers;
    while (read_numbers(numbers)) {
        Reader reader{numbers};
        std::vector<double> answer;
        const bool right = reader.next() == 1 ? constructs(std::size_t(threads), reader, answer)
                                              : grains(reader, answer);
        rest();
        if (!right) {
            std::puts("\"a task did not find what it needs, or was left out\"");
        } else {
            for (std::size_t at = 0; at < answer.size(); at++)
                std::printf("%c%.3f", at ? ',' : '[', answer[at]);
            std::puts("]");
        }
        std::fflush(stdout);
    }
    return 0;
}
