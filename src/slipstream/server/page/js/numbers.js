/** Numbers as people read them. */

export const fixed = (value, digits = 1) => Number(value).toFixed(digits);
export const percent = (share) => `${Math.round(share * 100)} %`;
export const times = (ratio) => `${Number(ratio).toFixed(2)}×`;
export const whole = (value) => Math.round(value).toLocaleString("en");
export const counted = (count, noun) => `${whole(count)} ${noun}${count === 1 ? "" : "s"}`;
