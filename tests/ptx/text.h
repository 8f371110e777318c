// Text of PTX: statements, lists of operands, numbers.
#pragma once

#include <cctype>
#include <string>
#include <string_view>
#include <vector>

namespace fastcomm::ptx {

inline std::string_view trimmed(std::string_view text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front()))) {
    text.remove_prefix(1);
  }
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back()))) {
    text.remove_suffix(1);
  }
  return text;
}

/// Parts between separators outside of any bracket.
inline std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  int depth = 0;
  size_t begin = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '(' || c == '[' || c == '{') ++depth;
    if (c == ')' || c == ']' || c == '}') --depth;
    if (c == separator && depth == 0) {
      parts.push_back(trimmed(text.substr(begin, i - begin)));
      begin = i + 1;
    }
  }
  const std::string_view last = trimmed(text.substr(begin));
  if (!last.empty()) parts.push_back(last);
  return parts;
}

/// Takes the first word, which ends at white space.
inline std::string_view take_word(std::string_view& text) {
  text = trimmed(text);
  size_t end = 0;
  while (end < text.size() && !std::isspace(static_cast<unsigned char>(text[end]))) ++end;
  const std::string_view word = text.substr(0, end);
  text = trimmed(text.substr(end));
  return word;
}

inline bool starts_with(std::string_view text, std::string_view start) {
  return text.substr(0, start.size()) == start;
}

inline std::string without_comments(const std::string& text) {
  std::string result;
  result.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const std::string_view rest = std::string_view(text).substr(i, 2);
    if (rest == "//") {
      while (i < text.size() && text[i] != '\n') ++i;
    } else if (rest == "/*") {
      i = text.find("*/", i + 2);
      i = i == std::string::npos ? text.size() : i + 2;
    } else {
      result += text[i++];
    }
  }
  return result;
}

/// Calls visit(statement) for each statement of a function's body: "{" and "}" of scopes, "label:",
/// or what a semicolon ends.
template <class Visit>
void each_statement(std::string_view body, const Visit& visit) {
  size_t begin = 0;
  for (size_t i = 0; i < body.size(); ++i) {
    const char c = body[i];
    if (c != '{' && c != '}' && c != ':' && c != ';') continue;
    const std::string_view before = trimmed(body.substr(begin, i - begin));
    if ((c == '{' || c == '}') && before.empty()) {
      visit(body.substr(i, 1));
    } else if (c == ':' && !before.empty() && before.find_first_of(" \t\n.") == before.npos) {
      visit(trimmed(body.substr(begin, i + 1 - begin)));
    } else if (c == ';') {
      if (!before.empty()) visit(before);
    } else {
      continue;
    }
    begin = i + 1;
  }
}

}  // namespace fastcomm::ptx
