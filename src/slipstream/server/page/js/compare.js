/** Where two texts differ: the index of the first character, or -1 if they are the same. */
export function firstDifference(one, other) {
  const shorter = Math.min(one.length, other.length);
  for (let index = 0; index < shorter; index += 1) {
    if (one[index] !== other[index]) return index;
  }
  return one.length === other.length ? -1 : shorter;
}

/** The index of the token that holds a character. */
export function tokenAt(tokens, character) {
  let end = 0;
  return tokens.findIndex((token) => (end += token.text.length) > character);
}
