// A file of PTX: where its functions lie.
#include "program.h"

#include <algorithm>
#include <fstream>

#include "decoder.h"

namespace fastcomm::ptx {
namespace {

/// The text between a bracket at `begin` and the one that closes it; `end` is set behind that.
std::string_view within(std::string_view text, size_t begin, size_t* end) {
  int depth = 0;
  for (size_t i = begin; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '(' || c == '{') ++depth;
    if ((c == ')' || c == '}') && --depth == 0) {
      *end = i + 1;
      return text.substr(begin + 1, i - begin - 1);
    }
  }
  throw Unknown("PTX that ends within brackets");
}

}  // namespace

Program::Program(const std::string& file) {
  std::ifstream lines(file);
  if (!lines) throw Unknown("no file " + file);
  for (std::string line; std::getline(lines, line);) {
    text_.append(line, 0, line.find("//")).append("\n");
  }
  const std::string_view all = text_;
  for (size_t at = 0;;) {
    const size_t kernel = all.find(".entry", at);
    const size_t function = all.find(".func", at);
    if (kernel == all.npos && function == all.npos) return;
    const bool is_kernel = kernel < function;
    const size_t begin = std::min(kernel, function);
    find_shared(all.substr(at, begin - at));
    at = begin + (is_kernel ? 6 : 5);
    const size_t name_begin = all.find_first_not_of(" \t\n", at);
    if (all[name_begin] == '(') {
      throw Unknown("a function that returns a value: " + std::string(all.substr(at, 80)));
    }
    const size_t name_end = all.find_first_of(" \t\n({;", name_begin);
    const std::string name(all.substr(name_begin, name_end - name_begin));
    at = all.find_first_of("({;", name_end);
    std::string_view parameters;
    if (all[at] == '(') parameters = within(all, at, &at);
    const size_t directives = at;
    at = all.find_first_of("{;", at);
    if (all[at] == ';') continue;  // declared; defined further on
    const std::string_view between = all.substr(directives, at - directives);
    const std::string_view body = within(all, at, &at);
    sources_[name] = {is_kernel, parameters, between, body};
  }
}

void Program::find_shared(std::string_view between) {
  for (const std::string_view statement : split(between, ';')) {
    const size_t begin = statement.find(".shared");
    if (begin == statement.npos) continue;
    const std::string_view declaration = trimmed(statement.substr(begin));
    const size_t name = declaration.find_last_of(" \t\n") + 1;
    const size_t end = std::min(declaration.find('[', name), declaration.size());
    shared_[std::string(declaration.substr(name, end - name))] = declaration;
  }
}

std::string_view Program::shared(std::string_view name) const {
  const auto found = shared_.find(name);
  return found == shared_.end() ? std::string_view() : found->second;
}

std::vector<std::string> Program::kernels() const {
  std::vector<std::string> names;
  for (const auto& [name, source] : sources_) {
    if (source.is_kernel) names.push_back(name);
  }
  return names;
}

const Function& Program::function(const std::string& name) {
  const std::lock_guard<std::recursive_mutex> lock(mutex_);
  auto& made = functions_[name];
  if (made != nullptr) return *made;
  const auto source = sources_.find(name);
  if (source == sources_.end()) throw Unknown("no function " + name);
  const auto& [is_kernel, parameters, directives, body] = source->second;
  made = std::make_unique<Function>();
  made->name = name;
  Decoder(*made, *this).decode(parameters, body);
  const size_t most = directives.find(".maxntid");
  if (most != directives.npos) {
    made->most_threads =
        static_cast<uint32_t>(std::stoul(std::string(directives.substr(most + 8))));
  }
  return *made;
}

}  // namespace fastcomm::ptx
