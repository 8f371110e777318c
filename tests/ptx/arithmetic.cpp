// Instructions of PTX that compute: by their full names, modifiers included.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <type_traits>
#include <unordered_map>

#include "core/numeric.h"
#include "machine.h"

namespace fastcomm::ptx {
namespace {

using Table = std::unordered_map<std::string, Execute>;

template <class T>
T value_of(uint64_t bits) {
  T value;
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}
/// Results of devices have one NaN of 32 bits.
template <class T>
uint64_t bits_of(T value) {
  if constexpr (std::is_same_v<T, float>) {
    if (std::isnan(value)) return 0x7fffffff;
  }
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  return bits;
}

template <class T>
T source(const Thread& thread, const Operation& operation, int which) {
  return value_of<T>(thread.registers[operation.from[which]]);
}
template <class T, class F>
void unary(Thread& t, const Operation& o) {
  t.registers[o.to[0]] = bits_of(F()(source<T>(t, o, 0)));
}
template <class T, class F>
void binary(Thread& t, const Operation& o) {
  t.registers[o.to[0]] = bits_of(F()(source<T>(t, o, 0), source<T>(t, o, 1)));
}
template <class T, class F>
void ternary(Thread& t, const Operation& o) {
  t.registers[o.to[0]] = bits_of(F()(source<T>(t, o, 0), source<T>(t, o, 1), source<T>(t, o, 2)));
}

#define FC_UNARY(Name, expression)                \
  struct Name {                                   \
    template <class T>                            \
    auto operator()([[maybe_unused]] T a) const { \
      return expression;                          \
    }                                             \
  };
#define FC_BINARY(Name, expression)   \
  struct Name {                       \
    template <class T>                \
    auto operator()(T a, T b) const { \
      return expression;              \
    }                                 \
  };

template <class T>
using Wide = std::conditional_t<
    sizeof(T) == 2, std::conditional_t<std::is_signed_v<T>, int32_t, uint32_t>,
    std::conditional_t<sizeof(T) == 4, std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>,
                       std::conditional_t<std::is_signed_v<T>, __int128, unsigned __int128>>>;
template <class T>
using Unsigned = std::make_unsigned_t<T>;

FC_BINARY(Add, static_cast<T>(a + b))
FC_BINARY(Sub, static_cast<T>(a - b))
FC_BINARY(Mul, static_cast<T>(a* b))
FC_BINARY(MulLow, static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b)))
FC_BINARY(MulWide, static_cast<Wide<T>>(static_cast<Wide<T>>(a) * b))
FC_BINARY(MulHigh, static_cast<T>((static_cast<Wide<T>>(a) * b) >> (8 * sizeof(T))))
FC_BINARY(Div, static_cast<T>(a / b))
/// A division by zero gives ones, as on a device; the least number by -1 overflows.
FC_BINARY(DivInteger, b == 0 ? static_cast<T>(~T(0))
                             : static_cast<T>(b == static_cast<T>(-1) && std::is_signed_v<T>
                                                  ? Unsigned<T>(0) - static_cast<Unsigned<T>>(a)
                                                  : a / b))
FC_BINARY(Remainder,
          b == 0 ? a
                 : static_cast<T>(b == static_cast<T>(-1) && std::is_signed_v<T> ? T(0) : a % b))
FC_BINARY(Min, std::min(a, b))
FC_BINARY(Max, std::max(a, b))
FC_BINARY(And, static_cast<T>(a& b))
FC_BINARY(Or, static_cast<T>(a | b))
FC_BINARY(Xor, static_cast<T>(a ^ b))
FC_BINARY(Eq, a == b)
FC_BINARY(Ne, a<b || a> b || (std::is_integral_v<T> && a != b))  // not of NaN
FC_BINARY(Lt, a < b)
FC_BINARY(Le, a <= b)
FC_BINARY(Gt, a > b)
FC_BINARY(Ge, a >= b)
FC_BINARY(IsNan, std::isnan(a) || std::isnan(b))
FC_BINARY(IsNumber, !std::isnan(a) && !std::isnan(b))
FC_UNARY(Not, static_cast<T>(~a))
FC_UNARY(IsTrue, a != 0)
FC_UNARY(NotTrue, a == 0)
FC_UNARY(Negate, static_cast<T>(-a))
FC_UNARY(Absolute, static_cast<T>(std::abs(a)))
FC_UNARY(Same, a)
FC_UNARY(SquareRoot, std::sqrt(a))
struct FusedAdd {
  template <class T>
  T operator()(T a, T b, T c) const {
    return std::fma(a, b, c);
  }
};
struct MulLowAdd {
  template <class T>
  T operator()(T a, T b, T c) const {
    return static_cast<T>(MulLow()(a, b) + c);
  }
};
template <class To, class From>
void convert(Thread& t, const Operation& o) {
  t.registers[o.to[0]] = bits_of(static_cast<To>(source<From>(t, o, 0)));
}
FC_UNARY(FromHalf, std::isnan(half_to_float(a)) ? value_of<float>(0x7fffffff) : half_to_float(a))
FC_UNARY(ToHalf, std::isnan(a) ? uint16_t{0x7fff} : float_to_half(a))

/// Shifts take 32 bits, of which none is ignored.
template <class T, bool kLeft>
void shift(Thread& t, const Operation& o) {
  const T value = source<T>(t, o, 0);
  const auto by = source<uint32_t>(t, o, 1);
  constexpr uint32_t kBits = 8 * sizeof(T);
  T result;
  if (kLeft) {
    result = by >= kBits ? T(0) : static_cast<T>(static_cast<Unsigned<T>>(value) << by);
  } else {
    result = by >= kBits ? static_cast<T>(std::is_signed_v<T> && value < 0 ? -1 : 0)
                         : static_cast<T>(value >> by);
  }
  t.registers[o.to[0]] = bits_of(result);
}
void funnel_right(Thread& t, const Operation& o) {
  const uint64_t high = source<uint32_t>(t, o, 1);
  const uint64_t both = high << 32 | source<uint32_t>(t, o, 0);
  t.registers[o.to[0]] = static_cast<uint32_t>(both >> (source<uint32_t>(t, o, 2) & 31));
}
/// Bytes of two words, chosen by four digits; a digit above 7 repeats that byte's sign.
void permute(Thread& t, const Operation& o) {
  const uint64_t both =
      static_cast<uint64_t>(source<uint32_t>(t, o, 1)) << 32 | source<uint32_t>(t, o, 0);
  const auto digits = source<uint32_t>(t, o, 2);
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t digit = digits >> (4 * i) & 15;
    uint32_t byte = both >> (8 * (digit & 7)) & 255;
    if (digit & 8) byte = byte & 128 ? 255 : 0;
    result |= byte << (8 * i);
  }
  t.registers[o.to[0]] = result;
}
template <class T>
T low_bits(uint32_t count) {
  return count >= 8 * sizeof(T) ? ~T(0) : static_cast<T>((T(1) << count) - 1);
}
template <class T>
void insert_field(Thread& t, const Operation& o) {
  const uint32_t at = source<uint32_t>(t, o, 2) & 255;
  const uint32_t count = source<uint32_t>(t, o, 3) & 255;
  const T field = at >= 8 * sizeof(T) ? T(0) : static_cast<T>(low_bits<T>(count) << at);
  const T shifted = field == 0 ? T(0) : static_cast<T>(source<T>(t, o, 0) << at);
  t.registers[o.to[0]] = bits_of(static_cast<T>((source<T>(t, o, 1) & ~field) | (shifted & field)));
}
template <class T>
void choose(Thread& t, const Operation& o) {
  t.registers[o.to[0]] = bits_of(source<T>(t, o, source<uint8_t>(t, o, 2) != 0 ? 0 : 1));
}

template <class T, class F>
void compare(Thread& t, const Operation& o) {
  t.registers[o.to[0]] = F()(source<T>(t, o, 0), source<T>(t, o, 1));
}
template <class T, class F, class Join>
void compare_and_join(Thread& t, const Operation& o) {
  const bool result = F()(source<T>(t, o, 0), source<T>(t, o, 1));
  t.registers[o.to[0]] = Join()(result, source<uint8_t>(t, o, 2) != 0);
}
template <class T, class F>
void add_compare(Table& table, const std::string& name, const std::string& type) {
  table["setp." + name + "." + type] = compare<T, F>;
  table["setp." + name + ".and." + type] = compare_and_join<T, F, And>;
  table["setp." + name + ".or." + type] = compare_and_join<T, F, Or>;
  table["setp." + name + ".xor." + type] = compare_and_join<T, F, Xor>;
}

template <class T>
void add_bits(Table& table, const std::string& type) {
  table["and." + type] = binary<T, And>;
  table["or." + type] = binary<T, Or>;
  table["xor." + type] = binary<T, Xor>;
  table["not." + type] = unary<T, Not>;
  table["shl." + type] = shift<T, true>;
  table["shr." + type] = shift<T, false>;
  table["mov." + type] = unary<T, Same>;
  table["selp." + type] = choose<T>;
  add_compare<T, Eq>(table, "eq", type);
  add_compare<T, Ne>(table, "ne", type);
}

template <class T>
void add_integer(Table& table, const std::string& type) {
  table["add." + type] = binary<T, Add>;
  table["sub." + type] = binary<T, Sub>;
  table["div." + type] = binary<T, DivInteger>;
  table["rem." + type] = binary<T, Remainder>;
  table["min." + type] = binary<T, Min>;
  table["max." + type] = binary<T, Max>;
  table["mul.lo." + type] = binary<T, MulLow>;
  table["mul.hi." + type] = binary<T, MulHigh>;
  table["mad.lo." + type] = ternary<T, MulLowAdd>;
  if constexpr (sizeof(T) < 8) {
    table["mul.wide." + type] = binary<T, MulWide>;
  }
  if constexpr (std::is_signed_v<T>) {
    table["neg." + type] = unary<T, Negate>;
    table["abs." + type] = unary<T, Absolute>;
  }
  table["shr." + type] = shift<T, false>;
  table["mov." + type] = unary<T, Same>;
  table["selp." + type] = choose<T>;
  add_compare<T, Eq>(table, "eq", type);
  add_compare<T, Ne>(table, "ne", type);
  for (const char* each : {"lt", "lo"}) add_compare<T, Lt>(table, each, type);
  for (const char* each : {"le", "ls"}) add_compare<T, Le>(table, each, type);
  for (const char* each : {"gt", "hi"}) add_compare<T, Gt>(table, each, type);
  for (const char* each : {"ge", "hs"}) add_compare<T, Ge>(table, each, type);
}

template <class T>
void add_float(Table& table, const std::string& type) {
  for (const char* rounding : {"", "rn."}) {
    table[std::string("add.") + rounding + type] = binary<T, Add>;
    table[std::string("sub.") + rounding + type] = binary<T, Sub>;
    table[std::string("mul.") + rounding + type] = binary<T, Mul>;
  }
  table["div.rn." + type] = binary<T, Div>;
  table["fma.rn." + type] = ternary<T, FusedAdd>;
  table["sqrt.rn." + type] = unary<T, SquareRoot>;
  table["neg." + type] = unary<T, Negate>;
  table["abs." + type] = unary<T, Absolute>;
  table["mov." + type] = unary<T, Same>;
  table["selp." + type] = choose<T>;
  add_compare<T, Eq>(table, "eq", type);
  add_compare<T, Ne>(table, "ne", type);
  add_compare<T, Lt>(table, "lt", type);
  add_compare<T, Le>(table, "le", type);
  add_compare<T, Gt>(table, "gt", type);
  add_compare<T, Ge>(table, "ge", type);
  add_compare<T, IsNan>(table, "nan", type);
  add_compare<T, IsNumber>(table, "num", type);
}

template <class To>
void add_conversions(Table& table, const std::string& to) {
  table["cvt." + to + ".s8"] = convert<To, int8_t>;
  table["cvt." + to + ".u8"] = convert<To, uint8_t>;
  table["cvt." + to + ".s16"] = convert<To, int16_t>;
  table["cvt." + to + ".u16"] = convert<To, uint16_t>;
  table["cvt." + to + ".s32"] = convert<To, int32_t>;
  table["cvt." + to + ".u32"] = convert<To, uint32_t>;
  table["cvt." + to + ".s64"] = convert<To, int64_t>;
  table["cvt." + to + ".u64"] = convert<To, uint64_t>;
}

Table make_table() {
  Table table;
  add_bits<uint16_t>(table, "b16");
  add_bits<uint32_t>(table, "b32");
  add_bits<uint64_t>(table, "b64");
  add_integer<int16_t>(table, "s16");
  add_integer<uint16_t>(table, "u16");
  add_integer<int32_t>(table, "s32");
  add_integer<uint32_t>(table, "u32");
  add_integer<int64_t>(table, "s64");
  add_integer<uint64_t>(table, "u64");
  add_float<float>(table, "f32");
  add_float<double>(table, "f64");
  add_conversions<int16_t>(table, "s16");
  add_conversions<uint16_t>(table, "u16");
  add_conversions<int32_t>(table, "s32");
  add_conversions<uint32_t>(table, "u32");
  add_conversions<int64_t>(table, "s64");
  add_conversions<uint64_t>(table, "u64");
  add_conversions<float>(table, "rn.f32");
  add_conversions<double>(table, "rn.f64");
  table["cvt.rn.f32.f64"] = convert<float, double>;
  table["cvt.f64.f32"] = convert<double, float>;
  table["cvt.f32.f16"] = unary<uint16_t, FromHalf>;
  table["cvt.rn.f16.f32"] = unary<float, ToHalf>;
  table["and.pred"] = binary<uint8_t, And>;
  table["or.pred"] = binary<uint8_t, Or>;
  table["xor.pred"] = binary<uint8_t, Xor>;
  table["not.pred"] = unary<uint8_t, NotTrue>;
  table["mov.pred"] = unary<uint64_t, IsTrue>;
  table["shf.r.wrap.b32"] = funnel_right;
  table["prmt.b32"] = permute;
  table["bfi.b32"] = insert_field<uint32_t>;
  table["bfi.b64"] = insert_field<uint64_t>;
  table["cvta.to.global.u64"] = table["cvta.global.u64"] = unary<uint64_t, Same>;
  table["cvta.param.u64"] = unary<uint64_t, Same>;
  return table;
}

}  // namespace

Execute arithmetic(const std::string& name) {
  static const Table table = make_table();
  const auto found = table.find(name);
  return found == table.end() ? nullptr : found->second;
}

}  // namespace fastcomm::ptx
