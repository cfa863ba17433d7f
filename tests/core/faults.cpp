// Lets every allocation of a script fail in turn, and looks at what is left.
//
// A script is a fixed list of random calls. It runs once as it is, then with allocation 0 failing, then 1, and so on until one
// run ends without a failure. After a failure either every further call refuses with a sentence, or nothing has changed: the
// structure is sound, the same call succeeds now (or is left out), and all that follows is as it is without the failure.
// Compiled and run by tests/core/test_faults.py.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <new>
#include <random>
#include <string>

#include "suffix/text.hpp"

namespace {

std::atomic<long> waiting = -1;  // allocations of the core until one fails; negative: none does
std::atomic<long> to_pass = -1;  // likewise, while the core is called
std::atomic<long> failures = 0;

/// Only what the core allocates counts.
struct Called {
    Called() { to_pass = waiting.load(); }
    ~Called() { waiting = to_pass.exchange(-1); }
};

void* allocated(size_t bytes, size_t alignment) {
    if (to_pass >= 0 && to_pass-- == 0) {  // of several threads one fails
        ++failures;
        throw std::bad_alloc();
    }
    void* memory = nullptr;
    if (posix_memalign(&memory, alignment, bytes ? bytes : 1) != 0) throw std::bad_alloc();
    return memory;
}

}  // namespace

void* operator new(size_t bytes) { return allocated(bytes, 16); }
void* operator new[](size_t bytes) { return allocated(bytes, 16); }
void* operator new(size_t bytes, std::align_val_t alignment) { return allocated(bytes, static_cast<size_t>(alignment)); }
void* operator new[](size_t bytes, std::align_val_t alignment) { return allocated(bytes, static_cast<size_t>(alignment)); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }

namespace {

using namespace foresay;
using Log = std::vector<std::string>;

[[noreturn]] void wrong(const std::string& what, const std::string& where) {
    std::printf("%s: %s\n", where.c_str(), what.c_str());
    std::exit(1);
}

bool refused(const std::function<void()>& call, const std::string& where) {
    try {
        call();
    } catch (const StateError& error) {
        if (std::string(error.what()).find("failed before") == std::string::npos) wrong(error.what(), where);
        return true;
    } catch (const UnknownGroup&) {
    }
    return false;
}

template <class T>
std::string shown(const std::vector<T>& values) {
    std::string out;
    for (const T& value : values) out += std::to_string(value) + " ";
    return out + "| ";
}

// ---- slabs --------------------------------------------------------------------------------------------------------------

/// Pieces of all sizes are made, with allocations failing, and given back while every allocation would fail: release() is noexcept,
/// so one that allocates ends the program.
void test_slab() {
    std::mt19937 random(0);
    std::vector<std::pair<void*, size_t>> pieces(4000);
    for (auto& [memory, bytes] : pieces) {
        bytes = size_t{1} << (random() % 16);
        while (!memory) {
            waiting = random() % 2;
            try {
                const Called called;
                memory = slab::allocate(bytes);
            } catch (const std::bad_alloc&) {
            }
        }
    }
    std::shuffle(pieces.begin(), pieces.end(), random);
    for (const auto& [memory, bytes] : pieces) {
        waiting = 0;
        const Called called;
        slab::release(memory, bytes);
    }
    waiting = -1;
    std::puts("slabs");
}

// ---- the automaton ------------------------------------------------------------------------------------------------------

struct Append {
    uint32_t sequence;
    Token token;
};

/// Every state of an automaton, in words.
Log states_of(const Automaton& automaton, uint32_t tokens) {
    Log out;
    for (uint32_t n = 0; n < automaton.inner_states(); ++n) {
        const Automaton::Description d = automaton.describe(n | Automaton::kInner);
        out.push_back(shown(std::vector<uint32_t>{d.length, d.shortest, d.total, d.first, d.latest, d.link}) + shown(d.tokens) + shown(d.counts) +
                      shown(d.targets));
    }
    return out.push_back(std::to_string(automaton.size()) + " of " + std::to_string(tokens)), out;
}

/// The states, or nothing if the automaton was refused.
Log extended(const std::vector<Append>& script, Counting counting, long failing, const std::string& where) {
    Automaton automaton(counting);
    std::vector<Automaton::Sequence> sequences;
    for (uint32_t s = 0; s < 3; ++s) sequences.push_back(automaton.begin());
    waiting = failing;
    for (const auto& [sequence, token] : script) {
        try {
            const Called called;
            automaton.extend(sequences[sequence], token);
        } catch (const std::bad_alloc&) {
            if (refused([&] { automaton.extend(sequences[sequence], token); }, where)) {
                for (Automaton::Sequence& other : sequences)
                    if (!refused([&] { automaton.extend(other, 1); }, where)) wrong("one sequence refuses and another does not", where);
                return {};
            }
        }
    }
    automaton.check_integrity();
    return states_of(automaton, static_cast<uint32_t>(script.size()));
}

void test_automaton(uint32_t seed, uint32_t alphabet, Counting counting) {
    const std::string name = "automaton, seed " + std::to_string(seed);
    std::mt19937 random(seed);
    std::vector<Append> script;
    for (uint32_t i = 0; i < 2000; ++i) script.push_back({static_cast<uint32_t>(random() % 3), static_cast<Token>(random() % alphabet)});
    const Log clean = extended(script, counting, -1, name);
    long k = 0;
    for (;; ++k) {
        const long before = failures;
        const std::string where = name + ", allocation " + std::to_string(k);
        const Log left = extended(script, counting, k, where);
        if (!left.empty() && left != clean) wrong("it is not as without the failure", where);
        if (failures == before) break;
    }
    std::printf("%s: %ld allocations\n", name.c_str(), k);
}

// ---- the drafter --------------------------------------------------------------------------------------------------------

enum class Call : uint8_t { begin, propose, observe, step, finish, forget, drop_group, drop_tenant };

struct Line {
    Call call;
    std::vector<uint32_t> names;               // of the requests
    std::vector<std::vector<Token>> tokens;    // of each
    std::vector<int32_t> budgets;
    std::optional<std::string> group, tenant;
};

/// Texts that repeat themselves and each other, so that there is much to draft.
std::vector<Token> some_tokens(std::mt19937& random, uint32_t most) {
    std::vector<Token> out;
    const uint32_t count = 1 + random() % most;
    while (out.size() < count) {
        const Token first = static_cast<Token>(random() % 40);
        for (Token t = 0; t < static_cast<Token>(1 + random() % 6); ++t) out.push_back(first + t * (random() % 8 == 0 ? 2 : 1));
    }
    return out;
}

std::vector<Line> script_of(std::mt19937& random, uint32_t lines, uint32_t least_requests) {
    std::vector<Line> script;
    std::vector<uint32_t> running;
    uint32_t names = 0;
    const auto optional_name = [&](const char* first, uint32_t chances) -> std::optional<std::string> {
        const uint32_t which = random() % chances;
        return which < 2 ? std::optional(std::string(first) + (which ? ", with a name that is too long for the string itself" : "")) : std::nullopt;
    };
    for (uint32_t l = 0; l < lines; ++l) {
        Line line{};
        const uint32_t dice = running.size() <= least_requests ? 0 : random() % 20;
        if (dice < 3) {
            line = {Call::begin, {names}, {some_tokens(random, 60)}, {}, optional_name("group", 3), optional_name("tenant", 4)};
            running.push_back(names++);
        } else if (dice < 17) {
            line.call = dice < 7 ? Call::propose : dice < 11 ? Call::observe : Call::step;
            for (const uint32_t name : running) {
                if (least_requests == 0 && random() % 3 == 0) continue;
                line.names.push_back(name);
                line.tokens.push_back(random() % 10 == 0 ? std::vector<Token>{} : some_tokens(random, 8));
                line.budgets.push_back(static_cast<int32_t>(random() % 10));
            }
        } else if (dice < 19) {
            const size_t which = random() % running.size();
            line.call = dice == 17 ? Call::finish : random() % 4 ? Call::finish : Call::forget;
            line.names = {running[which]};
            running.erase(running.begin() + static_cast<ptrdiff_t>(which));
        } else {
            line.call = random() % 2 ? Call::drop_group : Call::drop_tenant;
            line.group = "group", line.tenant = optional_name("tenant", 2);
        }
        script.push_back(std::move(line));
    }
    return script;
}

/// A drafter and its requests, which the script knows by name.
struct Stage {
    std::unique_ptr<TextDrafter> drafter;
    std::map<uint32_t, std::unique_ptr<Request>> requests;

    ~Stage() { requests.clear(); }

    std::string perform(const Line& line) {
        std::vector<Request*> batch;
        std::vector<Token> tokens;
        std::vector<int32_t> offsets{0}, budgets;
        for (size_t i = 0; i < line.names.size() && line.call != Call::begin; ++i) {
            const auto found = requests.find(line.names[i]);
            if (found == requests.end()) continue;  // its begin was left out
            batch.push_back(found->second.get());
            if (line.tokens.empty()) continue;
            tokens.insert(tokens.end(), line.tokens[i].begin(), line.tokens[i].end());
            offsets.push_back(static_cast<int32_t>(tokens.size()));
            budgets.push_back(line.budgets[i]);
        }
        DraftTrees out;
        std::unique_ptr<Request> begun;
        call(line, batch, tokens, offsets, budgets, out, begun);
        if (begun) requests[line.names[0]] = std::move(begun);
        if (line.call == Call::finish || line.call == Call::forget) requests.erase(line.names[0]);
        return shown(out.tokens) + shown(out.parents) + shown(out.scores) + shown(out.offsets);
    }

    void call(const Line& line, const std::vector<Request*>& batch, const std::vector<Token>& tokens, const std::vector<int32_t>& offsets,
              const std::vector<int32_t>& budgets, DraftTrees& out, std::unique_ptr<Request>& begun) {
        const Called called;
        switch (line.call) {
        case Call::begin: begun = drafter->begin(line.tokens[0], line.group, line.tenant); break;
        case Call::propose: out = drafter->propose(batch, budgets, 0); break;
        case Call::observe: drafter->observe(batch, tokens, offsets); break;
        case Call::step: out = drafter->step(batch, tokens, offsets, budgets, 0); break;
        case Call::finish:
            if (!batch.empty()) drafter->finish(*batch[0]);
            break;
        case Call::forget: break;
        case Call::drop_group:
            try {
                drafter->drop_group(*line.group, line.tenant);
            } catch (const UnknownGroup&) {
            }
            break;
        case Call::drop_tenant: drafter->drop_tenant(line.tenant.value_or("")); break;
        }
    }

    /// What anybody can see, if nothing fails.
    std::string seen() {
        std::string out = std::to_string(drafter->tokens()) + " " + std::to_string(drafter->groups()) + " ";
        for (const auto& [name, request] : requests) out += std::to_string(name) + ": " + shown(drafter->text(*request));
        return out;
    }

    void expect_refusal(const std::string& where) {
        const std::vector<Token> token{1};
        const std::vector<int32_t> none{0}, one{0, 1}, budget{1};
        std::vector<std::function<void()>> calls{
            [&] { drafter->begin(token, std::nullopt, std::nullopt); }, [&] { drafter->propose({}, {}, 0); },
            [&] { drafter->observe({}, {}, none); },                    [&] { drafter->step({}, {}, none, {}, 0); },
            [&] { drafter->drop_group("group", std::nullopt); },        [&] { drafter->drop_tenant("tenant"); },
            [&] { drafter->check_integrity(); }};
        for (const auto& [name, request] : requests) {
            Request* const state = request.get();
            calls.insert(calls.end(), {[&, state] { drafter->propose({&state, 1}, budget, 0); }, [&, state] { drafter->observe({&state, 1}, token, one); },
                                       [&, state] { drafter->step({&state, 1}, token, one, budget, 0); }, [&, state] { drafter->finish(*state); },
                                       [&, state] { drafter->text(*state); }, [&, state] { drafter->kinds(*state); }});
        }
        for (size_t c = 0; c < calls.size(); ++c)
            if (!refused(calls[c], where)) wrong("call " + std::to_string(c) + " is not refused, but others are", where);
        drafter->bytes(), drafter->tokens(), drafter->groups();
    }
};

constexpr size_t kNowhere = SIZE_MAX;

/// What was drafted, line by line, without line `left_out`; ends where the drafter refuses. `failed` is the line that did.
Log performed(const std::vector<Line>& script, const TextOptions& options, long failing, bool again, size_t left_out, size_t& failed,
              const std::string& where) {
    Log log;
    Stage stage;
    failed = kNowhere;
    stage.drafter = std::make_unique<TextDrafter>(options, std::vector<std::shared_ptr<const FrozenIndex>>{});
    waiting = failing;
    for (size_t l = 0; l < script.size(); ++l) {
        if (l == left_out) {
            log.push_back(stage.seen());
            continue;
        }
        const std::string here = where + ", line " + std::to_string(l);
        std::string drafted;
        try {
            drafted = stage.perform(script[l]);
        } catch (const std::bad_alloc&) {
            failed = l;
            if (refused([&] { stage.drafter->drop_group("a group that nobody began", std::nullopt); }, here)) {
                stage.expect_refusal(here);
                return log;
            }
            stage.drafter->check_integrity();
            if (again) drafted = stage.perform(script[l]);
        }
        log.push_back(drafted + stage.seen());
        if (l % 8 == 0) stage.drafter->check_integrity();
    }
    stage.drafter->check_integrity();
    return log;
}

void test_drafter(uint32_t seed, const TextOptions& options, uint32_t lines, uint32_t least_requests, long stride) {
    const std::string name = "drafter, seed " + std::to_string(seed);
    std::mt19937 random(seed);
    const std::vector<Line> script = script_of(random, lines, least_requests);
    size_t failed = kNowhere;
    const Log clean = performed(script, options, -1, true, kNowhere, failed, name);
    long k = 0, refusals = 0;
    for (bool more = true; more; k += stride) {
        for (const bool again : {true, false}) {
            const std::string where = name + ", allocation " + std::to_string(k) + (again ? ", again" : ", left out");
            const Log log = performed(script, options, k, again, kNowhere, failed, where);
            more = failed != kNowhere;
            if (log.size() < script.size()) {  // refused; what came before is as it should be
                ++refusals;
                if (!std::equal(log.begin(), log.end(), clean.begin())) wrong("it is not as without the failure", where);
                continue;
            }
            // A propose that failed may be remembered in part, which the next drafts may show.
            if (!again && more && script[failed].call == Call::propose) continue;
            size_t none = kNowhere;
            const Log expected = again || !more ? clean : performed(script, options, -1, true, failed, none, where);
            if (log != expected) wrong("it is not as without the failure", where);
        }
    }
    std::printf("%s: %ld allocations, %ld refusals\n", name.c_str(), k, refusals / 2);
    if (refusals == 0) wrong("nothing was ever refused", name);
}

}  // namespace

int main() {
    setvbuf(stdout, nullptr, _IONBF, 0);
    test_slab();
    for (uint32_t seed = 0; seed < 3; ++seed) {
        test_automaton(seed, 4, Counting::novelties);
        test_automaton(seed, 100, seed % 2 ? Counting::novelties : Counting::occurrences);
    }
    for (uint32_t seed = 0; seed < 4; ++seed) {
        TextOptions options;
        options.history_bytes = seed % 2 ? size_t{1} << 20 : size_t{64} << 10;  // the smaller drops segments
        options.max_tenants = 2;
        options.growth.chain = seed < 2;
        if (seed == 3) options.sam = SamRule{1, 0};
        test_drafter(seed, options, 60, 0, 1);
    }
    TextOptions many;  // a step of more than one thread
    many.threads = 2;
    many.growth.chain = true;
    test_drafter(4, many, 90, 70, 37);
    std::puts("every allocation has failed once");
}
