// What the text drafter shares between requests: forgetting it, bounding it, weighing it.
#include "checks.hpp"
#include "idle.hpp"
#include "suffix/text.hpp"

namespace foresay {

void TextDrafter::add_to_group(const std::string& group, const Name& tenant, Text prompt, Text answer) {
    if (prompt.size() + answer.size() > options_.max_tokens)
        throw InputError("the text has ", prompt.size() + answer.size(), " tokens; expected at most ", options_.max_tokens);
    check_tokens(prompt);
    check_tokens(answer);
    const auto lock = enter();
    const std::pair key(key_of(tenant), group);
    if (!groups_.contains(key)) groups_.emplace(key, std::make_shared<Group>());
    Group& found = *groups_.at(key);
    found.used = ++clock_;
    change([&] {
        Automaton::Sequence sequence = found.automaton.begin();
        for (const Token token : prompt.last(std::min<size_t>(kLead, prompt.size()))) found.automaton.extend(sequence, token);
        for (const Token token : answer) found.automaton.extend(sequence, token);
    });
    evict();
}

void TextDrafter::new_version(const Name& tenant, uint64_t keep) {
    const auto lock = enter();
    const auto found = tenants_.find(key_of(tenant));
    if (found != tenants_.end()) found->second->history.new_version(keep);
}

void TextDrafter::drop_group(const std::string& group, const Name& tenant) {
    const auto lock = enter();
    const auto found = groups_.find({key_of(tenant), group});
    if (found == groups_.end())
        throw UnknownGroup("group '", group, "' is not known", (tenant ? " to tenant '" + *tenant + "'" : ""), "; ", groups_.size(),
                           " groups are, each from its first begin() until it is dropped");
    for (Request* request : requests_)
        if (request->group_ == found->second) request->group_.reset();
    groups_.erase(found);
}

void TextDrafter::drop_tenant(const std::string& name) {
    const auto lock = enter();
    const std::string tenant = key_of(name);
    const auto found = tenants_.find(tenant);
    // Requests that still run need a tenant: they go on with one that knows nothing.
    const auto afresh = found == tenants_.end() ? nullptr : std::make_shared<Tenant>(options_.history_bytes);
    for (auto it = groups_.begin(); it != groups_.end();) {
        if (it->first.first != tenant) {
            ++it;
            continue;
        }
        for (Request* request : requests_)
            if (request->group_ == it->second) request->group_.reset();
        it = groups_.erase(it);
    }
    if (!afresh) return;
    afresh->used = found->second->used;
    for (Request* request : requests_)
        if (request->tenant_ == found->second) {
            request->tenant_ = afresh;
            request->history_.clear();
            request->changes_ = UINT64_MAX;
            request->publishes_ = false;
        }
    if (afresh.use_count() == 1) tenants_.erase(found);
    else found->second = afresh;
}

/// Drops idle groups and idle tenants, least recently used first, until the bounds hold. With many of them the sums are
/// taken only now and then.
void TextDrafter::evict() {
    constexpr uint64_t kTooMany = 256, kNowAndThen = 64;
    if (++turnovers_ % kNowAndThen != 0 && groups_.size() + tenants_.size() > kTooMany && tenants_.size() <= options_.max_tenants) return;
    const auto shrink = [&](auto& items, size_t most_bytes, size_t most_items) {
        size_t bytes = 0;
        for (const auto& [key, item] : items) bytes += item->bytes();
        while (bytes > most_bytes || items.size() > most_items) {
            const auto oldest = oldest_idle(items);
            if (oldest == items.end()) return;
            bytes -= oldest->second->bytes();
            items.erase(oldest);
        }
    };
    shrink(groups_, options_.group_bytes, SIZE_MAX);
    shrink(tenants_, options_.tenant_bytes, options_.max_tenants);
}

/// Drops automata of own texts, the largest first, until those of all members of groups keep their bound. Of equally large ones
/// the one that began first goes: requests stand in no order, and drafts must not depend on addresses.
void TextDrafter::shrink_own() noexcept {
    const auto members = [&](const auto& work) {
        for (Request* request : requests_)
            if (request->own_ && request->group_) work(*request);
    };
    size_t sum = 0;
    members([&](const Request& request) { sum += request.own_->bytes(); });
    while (sum > options_.own_bytes) {
        Request* largest = nullptr;
        const auto before = [](const Request& a, const Request& b) {
            const size_t size = a.own_->bytes(), other = b.own_->bytes();
            return size != other ? size > other : a.begun_ < b.begun_;
        };
        members([&](Request& request) {
            if (!largest || before(request, *largest)) largest = &request;
        });
        if (!largest) return;
        sum -= largest->own_->bytes();
        largest->own_.reset();
    }
}

size_t TextDrafter::bytes() const {
    const std::lock_guard lock(mutex_);
    size_t sum = 0;
    for (const auto& [key, group] : groups_) sum += group->bytes();
    for (const auto& [name, tenant] : tenants_) sum += tenant->bytes();
    for (const Request* request : requests_) sum += request->bytes();
    return sum;
}

size_t TextDrafter::bytes_of(const Name& name) const {
    const std::lock_guard lock(mutex_);
    const auto found = tenants_.find(key_of(name));
    if (found == tenants_.end()) return 0;
    const Tenant* const tenant = found->second.get();
    size_t sum = tenant->bytes();
    for (const auto& [key, group] : groups_)
        if (key.first == found->first) sum += group->bytes();
    for (const Request* request : requests_)
        if (request->tenant_.get() == tenant) sum += request->bytes();
    return sum;
}

size_t TextDrafter::tokens() const {
    const std::lock_guard lock(mutex_);
    size_t sum = 0;
    for (const auto& [key, group] : groups_) sum += group->automaton.size();
    for (const auto& [name, tenant] : tenants_) sum += tenant->history.tokens();
    for (const Request* request : requests_) sum += request->own_ ? request->own_->size() : 0;
    return sum;
}

size_t TextDrafter::groups() const {
    const std::lock_guard lock(mutex_);
    return groups_.size();
}

void TextDrafter::check_integrity() const {
    const auto lock = enter();
    for (const auto& [key, group] : groups_) group->automaton.check_integrity();
    for (const auto& [name, tenant] : tenants_) tenant->history.check_integrity();
    for (const Request* request : requests_)
        if (request->own_) request->own_->check_integrity();
}

}  // namespace foresay
