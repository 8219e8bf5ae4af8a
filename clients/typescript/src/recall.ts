/** The recall tool, whose calls are answered from the log. */

export const RECALL = "recall";
